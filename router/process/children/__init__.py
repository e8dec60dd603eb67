"""Several gateway processes behind one port.

`supervisor.Supervisor` owns the listening sockets, the shared memory and the admin port, and carries no requests. One
`child_process.ChildProcess` per process starts it and restarts it. Each `child` is a whole gateway with an event loop
of its own; it receives a `child_config.ChildConfig`. `accept_balancer` gives the next connection to the process with
the fewest. `admin_operations` answers the admin API for all: `child_client` calls the children, whose answers the
operations merge, and whose `private_api` is for the supervisor alone. `metric_totals` adds up metrics, and `changes`
reach all children or none.
"""
