"""A black-box suite for any endpoint picker: what Envoy's ext_proc v3 and GAIE's protocol ask, over plain gRPC.

`run.run_conformance` runs the `ConformanceCase` of `groups` against a `Fixture`; `bench.Bench` is what a case works
with, and a `Hook` changes the pool. `phases` plays the gateway: it takes a request through an ext_proc stream.
`report` has the forms of the results. Imports gRPC; `router.cli` imports it when the command runs.
"""
