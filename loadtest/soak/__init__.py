"""``python -m loadtest soak``: hours of mixed traffic against a fleet that keeps breaking, judged client by client.

`fleet` starts workers and gateway and can break each worker. `faults` draws the faults and records them. `traffic`
plays conversations with different kinds of clients. `judgement` decides whether the faults explain the result of each
client. `gauges` watch the gateway's memory, descriptors and ledger. `run` is the whole run, and `report` prints its
result.
"""
