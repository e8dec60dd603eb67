"""vLLM's own server with the GPU replaced by a clock: an out-of-tree platform plug-in, inert unless WARMROUTE_CLOCK=1.

Nouns: `ClockSettings` (what the environment says), `Device` (the modelled GPU's own clock), `Batches` (what a step
computes). `platform` and `worker` are loaded by vLLM alone and need it; the rest is pure. `environment/` builds a
virtual environment in which vLLM runs without a GPU.
"""
