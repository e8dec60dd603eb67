"""Hostile clients and hostile workers, and their cost to the gateway.

`shapes` builds request bodies that are cheap to send and expensive to read. `floods` sends requests and never reads the
answers. `clients` keeps connections busy until a deadline. `sink` is a worker that accepts any body at once, or attacks
the gateway as a worker. `witness` is a process that requests ``/livez`` every few milliseconds, as another client.
`cost` reads CPU time and memory of a process. The soak's attacker and `tests/faults/cost_per_byte` use them.
"""
