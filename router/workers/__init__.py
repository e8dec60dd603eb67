"""What keeps the core told about workers.

`watcher.Watcher` has an `endpoint.EndpointWatch` follow each endpoint (probes, loads, restarts); its `subscriptions`
are one `subscriber.Subscriber` per rank (with `link`, `replay` and the shared `pump` beneath), its `selftests` find
out by `selftest.SelfTest` and its `trial.CacheTrial` whether a view is exact. Everything learned goes to
`router.placement.fleet` and `router.residency.residency_map`; nothing here decides. Imported by `router.app`, the
trial also by `router.cli.examine`.
"""
