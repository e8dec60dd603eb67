"""API keys, the admin tokens, TLS to clients and to workers, and the files behind them.

`keys.ApiKeys` guards the public port and `token.AdminTokens` the admin port. `tls.ServingTls` serves a port and
`tls.WorkerTls` connects to workers. Each reads files, raises `file_problem.UnusableFileError` where one cannot
be used, and is read again by `reload.FileWatch`. `settings` names mistakes, and settings that leave something open.
Imported by `router.gateway`, `router.admin`, `router.workers`, `router.tokenization` and the composition root.
"""
