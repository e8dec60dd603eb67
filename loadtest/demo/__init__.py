"""``warmroute demo``: four embedded workers and the gateway as real processes, round robin against the default policy.

`command` is the command line, `run` plays conversations through a fresh fleet, and `compare` does so for each policy.
`handover` compares workers that do everything with prefill and decode workers.
"""
