"""vLLM's own server with the GPU replaced by a clock: an out-of-tree platform plug-in, active only with
WARMROUTE_CLOCK=1.

Main types: `ClockSettings` (the environment's options), `Device` (the modelled GPU's own clock), `Batches` (the work of
a step), `Leases` and `BlockLoad` (the two sides of a modelled KV handover). `platform`, `worker` and `connector` are
loaded by vLLM alone and need it; the rest runs without. `environment/` builds a virtual environment in which vLLM runs
without a GPU.
"""
