"""The life of a gateway process, the hand-over of its port, and several processes behind one port.

`lifecycle.Life` starts a `router.app.System`, waits for its end and drains it. `listeners.Listeners` binds sockets,
`systemd` receives them from systemd, and `handover_client.Predecessor` takes them over from the gateway that runs,
whose `handover_server.Successors` answers; `handover_messages` holds the messages of the two. `admin_server` serves
the admin port.

``warmroute serve --processes N`` starts a `supervisor`, which owns the listening sockets, the shared memory and the
admin port, and has no data plane. One `child_process` per process starts it and starts it again. Each `child` is a
whole gateway on its own event loop and receives a `child_resources.Seat`. `shared_ledger` is the table in shared
memory: the load each process has booked on each worker, and its number of connections. `accept_balancer` gives the
next connection to the process with the fewest. `admin_of_children` answers for all processes: `child_client` calls the
children, `aggregate` and `metric_totals` add up their answers, `changes` reach all processes or none, and
`desired_state` keeps them for processes that start later. Imported by `router.cli`; `child_resources` and
`metric_snapshots` by `router.app`.
"""
