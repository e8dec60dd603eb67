"""Which worker holds which prefix. Pure: no sockets, no clock.

Main types: `prompt.Prompt` (the identity of a request's prompt), `residency_map.ResidencyMap` (what the dispatcher
asks), `exact.ExactView` (fed by KV events) and `approximate.ApproximateView` (a model for workers without events).
Imported by `router.placement`, `router.tokenization` and `router.workers`.
"""
