"""Traffic drawn from a seed: one module per shape. `shape.Shape` is their base class, `registry.Generator` the source.

A shape declares typed parameters with defaults and ranges, and makes sessions from them. A new shape is added to the
list in `registry`.
"""
