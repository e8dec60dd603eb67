"""vLLM's own server with the GPU replaced by a clock: an out-of-tree platform plug-in, active only with
WARMROUTE_CLOCK=1.

Main types: `ClockSettings` (the environment's options), `Device` (the modelled GPU's own clock), `Batches` (the work of
a step). `platform` and `worker` are loaded by vLLM alone and need it; the rest is pure. `environment/` builds a virtual
environment in which vLLM runs without a GPU.
"""
