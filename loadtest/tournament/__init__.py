"""The tournament, ``python -m loadtest tournament``: all rules on six workloads, and the page with the ranking.

`contests` is what is played: a `Contest` is a workload with its fleet, an `Extent` how much of it. `match` plays them
with the lab's own sweep and bisection, `pace` says how long that takes. What is found becomes `scores.Scores`, which
is results.json; `ranking` and `overall` read places, losses and the two halves off it, `page` writes them down.
Nothing imports this package but the command line.
"""
