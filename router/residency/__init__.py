"""Which worker holds which prefix. Pure: no sockets, no clock.

Main types: `prompt.Prompt` is the identity of a request's prompt. `residency_map.ResidencyMap` gives the dispatcher the
cached tokens of a prompt on each worker. `exact.ExactView` is fed by KV events, and `approximate.ApproximateView` is a
model for workers without events. Imported by `router.placement`, `router.tokenization` and `router.workers`.
"""
