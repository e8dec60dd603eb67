"""``python -m loadtest approximate``: how good the modelled view of a cache is where workers publish no events.

`workloads` are what is asked, `contenders` the ways to know what is cached, `score` folds a run into figures, `table`
prints them. Everything runs in `loadtest.sim`.
"""
