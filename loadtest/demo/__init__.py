"""``warmroute demo``: four embedded workers and the gateway as real processes, round robin against the default policy.

`fleet` starts and stops the processes, `command` is the command line, `run` one policy's run.
"""
