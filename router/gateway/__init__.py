"""The data plane: one protocol per client connection, one per worker connection, bytes spliced between them.

- `http/`: framing, heads, bodies, worker connections and their pool, SSE, usage, routes.
- `listen/`: listening sockets, accepting, the connection limit, draining.
- `rewrites/`: the named changes to request bodies.
- `flow/`: one forwarded request's life, from its identification to its end.
- `queues/`: requests that wait for a worker.
- `server.Gateway` listens; `client.ClientConnection` reads requests; `local` answers what needs no worker.
- `quarantine` limits what a query of death may cost. `assembly` builds the parts.
- `metrics_protocol` is what the gateway reports to `router.telemetry`.
"""
