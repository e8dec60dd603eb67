"""The data plane: one protocol per client connection, one per worker connection, bytes spliced between them.

`server.Gateway` listens; `client.ClientConnection` frames requests (`framing`, `head`, `chunks`); `exchange.Exchange`
is one request's life (identified, placed, sent, perhaps sent again, relayed) and `attempt.Attempt` one try of it at one
worker;
`upstream.WorkerConnection` frames responses and rests in `pool.WorkerPools` between two requests; short writes of one
turn of the loop go out together from the `outbox`; `budget` bounds the bodies in memory, and `slices` lets others be
served while a very large one is read; `heap` gives memory back after large ones; `losses` takes requests off
workers that are gone. `listen` makes the listening sockets, `paths` says as data what is forwarded, `worker_keys`
whose credentials a worker sees. Imported by `router.app`, and its `ports` by `router.telemetry`.
"""
