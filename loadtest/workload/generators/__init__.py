"""Traffic drawn from a seed, one shape of it per module. `shape.Shape` is the noun, `registry.Generator` the source.

A shape is typed parameters with defaults and ranges, and the sessions that follow from them; a new one is added to the
list in `registry`.
"""
