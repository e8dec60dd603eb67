"""Hostile clients and hostile workers.

`shapes` builds request bodies that are cheap to send and expensive to read. `clients` keeps connections busy until a
deadline, or floods them without reading the answers. `sink` is a worker that accepts any body at once, or attacks the
gateway as a worker. `attacker` is the soak's. `tests/faults/cost_per_byte` uses the others, too.
"""
