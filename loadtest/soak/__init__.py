"""``python -m loadtest soak``: traffic against a fleet that breaks, is attacked or restarts, judged client by client.

`fleet` starts workers and gateway, and can break and replace each. `faults` draws the faults and records them,
`restarts` replaces gateways and workers, and `attack` has the hostile client. `traffic` plays conversations with
different kinds of clients. `judgement` decides whether the faults explain the result of each client. `gauges` watch the
gateway's memory, descriptors and ledger. `run` is a run of one scenario, and `report` prints its result.
"""
