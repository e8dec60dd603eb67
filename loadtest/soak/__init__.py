"""``python -m loadtest soak``: hours of mixed traffic against a fleet that keeps breaking, judged client by client.

`fleet` starts workers and gateway and can break each worker; `faults` decides what breaks when, and remembers it;
`traffic` plays conversations in all manners of client; `judgement` explains what clients saw by the faults, or fails
to; `gauges` watch the gateway's memory, descriptors and ledger; `run` puts it together and `report` says how it went.
"""
