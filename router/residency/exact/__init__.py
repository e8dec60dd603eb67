"""The cache of a worker that publishes KV events: copies of blocks by tier, and their index over all workers.

`ExactCache` applies events; `Relearning` and `Drift` say where it may be wrong. Pure.
"""
