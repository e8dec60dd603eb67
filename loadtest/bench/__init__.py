"""``python -m loadtest bench``: the cost of the gateway and of other proxies, in one run on one machine.

`proxies` starts each proxy in front of a stand-in worker that costs almost no CPU. `measures` defines the measures,
`rounds` repeats them, `results` holds the figures, `bars` are their limits, and `page` writes them. `standin` is the
worker, with its `frames`, parsed bodies (`asked`) and prefix cache (`blocks`). The load generator consists of
`bodies`, `caller` and `streams`, over the connections of `loadtest.load`. `parts` measures single parts of the gateway
without HTTP.
"""
