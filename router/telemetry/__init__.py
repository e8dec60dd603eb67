"""The page of metrics, logs and the export of traces.

`exposition` renders `router.metrics` and the `readings` of a scrape as Prometheus text. `logs` sets up logging, and
`loop_lag` measures the event loop. `trace_exporter` sends the spans that the gateway records.
Imported by `router.app`, `router.admin`, `router.process` and `router.cli`.
"""
