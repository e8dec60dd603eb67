"""``python -m loadtest fidelity``: compare the engine model (`backends.engine`) with vLLM.

First check: the same arrivals go through a real vLLM in clock mode (`served`) and through the engine in virtual time
(`modelled`). They are compared request by request (`comparison`, `differences`). Second check: a profile is fitted to
one half of the requests in recordings of vLLM on a real GPU (`recording`, `fit`). It is judged on the other half
(`replay`). Nouns: `Scenario`, `Arrival`, `Outcome`, `Comparison`, `Recording`. `command` is the command line.
"""
