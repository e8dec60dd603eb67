"""``warmroute demo``: four embedded workers and the gateway as real processes, round robin against the default policy.

`command` is the command line, and `compare` plays conversations through a fresh fleet for each policy.
`kill` plays them while workers are killed, without migration and with it.
"""
