"""``python -m loadtest live``: compare the lab's result with real processes, for one workload and a few rules.

One plan per seed (`loadtest.workload`) is played twice: by `modelled` in virtual time, and by `player` over HTTP
through the gateway in front of a fleet (`trial`), its texts put in token ids by `wording`. Both give the lab's
measures; `ordering` says of every pair of rules whether both sides put it in the same order, `report` prints and writes
it, `run` is the whole command, `command` its flags and `settings` what they come to.
"""
