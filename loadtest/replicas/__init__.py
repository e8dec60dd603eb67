"""``python -m loadtest replicas``: what several gateways lose against one, and what sharing through Redis costs.

`cases.Case` is a number of gateways with what they know, and `cases.Share` the figures of one run of it. `simulated`
plays them in virtual time, where `virtual_exchange` carries the real messages; `live` plays them on real processes.
`exchange` measures the messages alone, between processes of `exchanger`. `faults` stops Redis under load. `bars`
compares the figures with the bars, `page` writes them, and `command` has the flags.
"""
