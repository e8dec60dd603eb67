"""Which worker holds which prefix. Pure: no sockets, no clock.

Main types: `prompt.Prompt` (the identity of a request's prompt), `residency_map.ResidencyMap` (the cached tokens of a
prompt on each worker, for the dispatcher), `exact.ExactView` (fed by KV events) and `approximate.ApproximateView` (a
model for workers without events). Imported by `router.placement`, `router.tokenization` and `router.workers`.
"""
