"""What the gateway costs beside other proxies, in one run on one machine.

`standin` is a worker that costs next to nothing, `proxies` starts each proxy in front of it, `measure` drives load and
reads CPU time, `gateway` is ``python -m loadtest gateway-bench``.
"""
