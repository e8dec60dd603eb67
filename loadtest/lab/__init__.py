"""The policy lab, ``python -m loadtest sim``: routing rules judged on a trace, in virtual time over the gateway's core.

`cell.Cell` is one run's whole configuration and `play.play` turns it into `measures.Measures`, the same every time;
`store.Store` keeps finished cells, `sweep` runs the others in parallel, `saturation` finds what load 1.0 is. `models`
says what is modelled and how one may doubt it. `comparison` compares rules over seeds; `output` writes it all down.
`question` is all of it on one trace. Nothing imports this package but the command line and the tournament.
"""
