"""``python -m loadtest soak``: traffic against a fleet that breaks, is attacked or restarts, judged client by client.

`fleet` starts workers and gateway and can break each worker. `faults` draws the faults and records them. `attack` has
the hostile client. `traffic` plays conversations with different kinds of clients. `judgement` decides whether the
faults explain the result of each client. `gauges` watch the gateway's memory, descriptors and ledger. `run` is a run
with faults or an attack, and `report` prints its result. `restarts` replaces gateways and workers under `load_client`,
which accepts no error.
"""
