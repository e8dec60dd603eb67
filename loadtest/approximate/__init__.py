"""``python -m loadtest approximate``: how accurate the modelled cache view is for workers without KV events.

`workloads` defines the load, `contenders` the kinds of views, `score` computes figures of a run, and `table` prints
them. Everything runs in `loadtest.sim`.
"""
