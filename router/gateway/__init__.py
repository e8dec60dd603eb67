"""The data plane: one protocol per client connection, one per worker connection, bytes spliced between them.

`server.Gateway` listens; `client.ClientConnection` frames requests; `exchange.Exchange` is one request's life
(identified, placed, sent, perhaps sent again, relayed); `upstream.WorkerConnection` frames responses and rests in
`pool.WorkerPools` between two requests. `paths` says as data what is forwarded. Imported by `router.app`, and its
`ports` by `router.telemetry`.
"""
