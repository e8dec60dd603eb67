"""The tournament, ``python -m loadtest tournament``: all rules on six workloads, and the page with the ranking.

A `contests.Contest` is a workload with its fleet, and an `Extent` says how much of it is played. `run` plays the
contests with the lab's own sweep and bisection. The results become
`scores.Scores`, which is results.json. `ranking` computes places and losses from it, and `page` writes them as
Markdown. Only the command line imports this package.
"""
