"""``python -m loadtest peers``: Warmroute and other routers in front of the same vLLM workers, one after the other.

`contenders` has each router's command line. `workers` starts the fleet and empties its caches, and `launch` starts one
router. `trial` plays the workload through it. `figures` and `report` turn the trials into tables. `compare` is the
whole run, and `command` has its flags.
"""
