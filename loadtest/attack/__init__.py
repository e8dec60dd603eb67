"""Hostile clients and hostile workers, and what they cost the gateway.

`shapes` builds request bodies that are cheap to send and dear to read; `floods` sends requests whose answers nobody
reads; `clients` keeps connections busy until a deadline; `sink` is a worker that takes any body at once, or attacks
the gateway from behind. `witness` is the other client: a process that asks for ``/livez`` every few milliseconds.
`cost` reads CPU time and memory of a process. The soak's attacker and `tests/faults/cost_per_byte` use them.
"""
