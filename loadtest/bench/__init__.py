"""Measure the cost of the gateway and of other proxies, in one run on one machine.

`gateway` is ``python -m loadtest gateway-bench``, `overhead` and `cost` the commands of those names; `runs` is what
they have in common. `proxies` starts each proxy in front of a stand-in worker that costs almost no CPU. `measures`
defines the measures, `rounds` repeats them, `results` holds the figures and `table` prints them. `bars` are the limits
of `cost`. `standin` is the worker, with its `ticker`, `frames`, parsed bodies (`asked`) and prefix cache (`blocks`).
The load generator consists of `bodies`, `caller`, `loops`, `pacer` and `streams`. `events` is ``python -m loadtest
events-bench``.
"""
