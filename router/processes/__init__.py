"""Several processes behind one port: ``warmroute serve --processes N``.

The `supervisor` is the parent: it has the listening sockets, the shared memory and the admin port, and no data plane. A
`keeper` per process starts it and starts it again. Each `child` is a whole gateway (`router.app.System`) on an event
loop of its own, given what a `seat.Seat` holds. `ledger` is the table in shared memory: what each process has booked on
each worker, and how many connections it has; `turns` has the process with the fewest take the next one. `admin` answers
for all: `asking` speaks to the children, `merging` and `totals` add up what they say, `changes` reach all or none, and
`standing` keeps them for processes that start later. Imported by `router.cli`; `seat` and `readings` by `router.app`.
"""
