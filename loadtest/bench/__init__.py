"""The gateway's cost beside other proxies, in one run on one machine.

`gateway` is ``python -m loadtest gateway-bench``: `proxies` starts each proxy in front of a stand-in worker that costs
next to nothing, `measures` says what is taken of it, `rounds` repeats that, `results` holds the figures that `table`
prints. The stand-in is `standin` with its `ticker`, `frames`, `asked` bodies and prefix cache (`blocks`); the load
generator is `bodies`, `caller`, `loops`, `pacer` and `streams`. `events` is ``python -m loadtest events-bench``.
"""
