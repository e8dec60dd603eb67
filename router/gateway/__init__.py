"""The HTTP front: one protocol per client connection, one per worker connection, bytes spliced between them.

- `http/`: framing, bodies, worker connections and their pool, SSE, usage.
- `listen/`: listening sockets, accepting, the connection limit, draining.
- `flow/`: one forwarded request's life, from its identification to its end.
- `layers/`: features around it, a folder each; `features` lists them.
- `server.PublicServer` listens; `client.ClientConnection` reads requests; `local` answers requests that need no worker.
- `assembly` builds the parts.
"""
