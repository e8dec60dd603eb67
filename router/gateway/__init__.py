"""The data plane: one protocol per client connection, one per worker connection, bytes spliced between them.

- `http/`: framing, heads, bodies, worker connections and their pool, SSE, usage, routes.
- `listen/`: listening sockets, accepting, the connection limit, draining.
- `rewrites/`: the named changes to request bodies.
- `server.Gateway` listens; `client.ClientConnection` reads requests; `exchange.Exchange` is one request's life
  (identified, placed, sent, perhaps retried, relayed) and `attempt.Attempt` one try at one worker.
- `metrics_protocol` is what the gateway reports to `router.telemetry`.
"""
