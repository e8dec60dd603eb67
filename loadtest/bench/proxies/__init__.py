"""The proxies to measure, one file per kind. `against` lists the proxies of a run.

An `Entrant` has its version and a function that starts it in front of a stand-in worker. A `Proxy` is a running one.
Imported by `loadtest.bench`.
"""
