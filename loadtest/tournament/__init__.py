"""Rules compared: ``python -m loadtest sim`` on one workload, and ``tournament`` on six, with one kind of page.

A `study.Study` is a workload with its fleet, and an `Extent` says how much of it is played. `contests` declares those
of the tournament. `run` plays them with the lab's sweep and bisection. The results become `scores.Scores`, which is
results.json. `ranking` computes places and losses from it, and `page` writes them as Markdown. Only the command line
imports this package.
"""
