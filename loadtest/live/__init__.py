"""``python -m loadtest live``: compare the lab's result with real processes, for one workload and a few rules.

One plan per seed (`loadtest.workload`) is played twice. `modelled` plays it in virtual time. `player` plays it over
HTTP through the gateway in front of a fleet (`trial`); `wording` writes its texts in token ids. Both give the lab's
measures. `ordering` compares the order of each pair of rules on both sides, and `report` prints and writes it. `run` is
the whole command, `command` has its flags, and `settings` turns them into settings. `cases` are workloads with a name,
for which `ratios` shows how much longer the first rule's TTFT is.
"""
