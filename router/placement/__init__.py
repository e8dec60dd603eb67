"""Placement: choose a worker for each request and account for its load. Synchronous and pure.

`now_s` and random sources are arguments: the gateway passes real time, the simulator virtual time. `dispatcher` takes
requests and returns decisions. `fleet` holds the workers and their states, `ledger` the reserved load, and
`lifecycle_events` the values that enter and leave. Imported by `router` and `loadtest`.
"""
