"""``warmroute demo``: four embedded workers and the gateway as real processes, round robin against the default policy.

`command` is the command line, `compare` the whole comparison, `run` one policy's run, `fleet` starts and stops the
processes. `handover` compares workers that do everything with prefill and decode workers.
"""
