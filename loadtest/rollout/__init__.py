"""Rolling restarts under load.

`command` is ``python -m loadtest rollout``, and `run` is the whole run. `clients` sends the load and counts failed
requests. `fleet` starts and replaces the gateway and the workers.
"""
