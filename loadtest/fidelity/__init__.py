"""``python -m loadtest fidelity``: the engine model (`backends.engine`) held to vLLM.

First check: the same arrivals through a real vLLM in clock mode (`served`) and through the engine in virtual time
(`modelled`), compared request by request (`comparison`, `differences`). Second check: recordings of vLLM on a real GPU
(`recording`), to which a profile is fitted on one half of the requests (`fit`) and judged on the other (`replay`).
Nouns: `Scenario`, `Arrival`, `Outcome`, `Comparison`, `Recording`. `command` is the command line.
"""
