"""The data plane: one protocol per client connection, one per worker connection, bytes spliced between them.

- `http/`: framing, heads, bodies, worker connections and their pool, SSE, usage, routes.
- `listen/`: listening sockets, accepting, the connection limit, draining.
- `rewrites/`: the named changes to request bodies.
- `flow/`: one forwarded request's life, from its identification to its end.
- `queues/`: requests that wait for a worker.
- `server.PublicServer` listens; `client.ClientConnection` reads requests; `local` answers requests that need no worker.
- `quarantine` limits the damage of a query of death. `assembly` builds the parts.
- `metrics` are the counters and histograms that the gateway writes to.
"""
