"""The policy lab, ``python -m loadtest sim``: rules compared on a trace, in virtual time over the gateway's core.

`cell.Cell` is the configuration of one run. `run_cell` runs it, and `aggregate` turns the outcomes into
`measures.Measures`; equal cells give equal measures. `store.Store` keeps finished cells, `sweep` runs the others in
parallel, and `saturation` finds load 1.0. `models` lists the models around the engine, and how to vary them.
`study` is all cells of one trace. `comparison` compares rules over seeds; `tables` shows the results. The tournament
and `loadtest.compare` use the same parts.
"""
