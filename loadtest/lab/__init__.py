"""The policy lab: runs of a rule on a trace, in virtual time over the gateway's core.

`cell.Cell` is the configuration of one run. `run_cell` runs it, and `aggregate` turns the outcomes into
`measures.Measures`; equal cells give equal measures. `store.Store` keeps finished cells, `sweep` runs the others in
parallel, and `saturation` finds load 1.0. `models` lists how the modelled workers may vary. `comparison` compares rules
over seeds. `loadtest.tournament`, `compare` and `plan` use these parts.
"""
