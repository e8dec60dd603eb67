"""Who may come in, and over what: API keys, the admin token, TLS to clients and to workers, and the files behind them.

`keys.ApiKeys` guards the public port and `token.AdminToken` the admin port; `serving.ServingTls` is what a port
listens with and `workers.WorkerTls` what a worker is reached with. Each reads files, says `Unusable` when it cannot,
and is read again by `reload.FileWatch`. `exposure` says what an operator should know before start. Imported by
`router.config` (to check settings), `router.gateway`, `router.admin`, `router.workers`, `router.tokenization` and the
composition root; itself it imports the settings' types only.
"""
