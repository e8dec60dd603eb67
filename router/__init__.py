"""The router: from a client's socket to a worker's and back.

`core` decides (pure), `prefix` knows who holds what (pure), `tokens` turns a request into its prefix identity,
`gateway` moves the bytes, `watch` keeps the core told about workers, `admin` is the operators' API, `telemetry`
what we count, `config` the settings, `cli` the commands. `app` is the composition root. Imported by `loadtest`.
"""
