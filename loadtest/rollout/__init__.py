"""Rolling restarts under load: `command` is ``python -m loadtest rollout``, `run` the whole of it, `clients` the load
and what counts as a failed request, `fleet` the gateway and the workers and how each is replaced."""
