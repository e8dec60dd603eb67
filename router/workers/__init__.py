"""Watch the workers: probes, load reports, KV events and self-tests.

`watcher.Watcher` gives each endpoint an `endpoint_watch.EndpointWatch`, which follows probes, loads and restarts. Its
`subscriptions` are one `subscriber.Subscriber` per rank, which uses `event_replay` and the shared `event_pump`. Its
`selftests` check with `selftest.SelfTest` and `cache_trial.CacheTrial` whether a worker cache is exact. The results
go to `router.placement.fleet.fleet` and `router.residency.residency_map`; this package places no requests. Imported by
`router.app`; the cache trial also by `router.cli.checks.examine`.
"""
