"""``python -m loadtest peers``: Warmroute and other routers in front of the same vLLM workers, one after the other.

`contenders` knows each router's command line, `workers` starts the fleet and empties its caches, `launch` starts one
router, `trial` plays the workload through it, `figures` and `report` fold the trials into tables, `compare` is the
whole run, `command` its flags.
"""
