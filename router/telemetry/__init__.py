"""Metrics, logs and the export of traces.

`catalogue` declares every metric, and `instruments` are the counters and histograms. `metrics` is called by the other
parts, and `exposition` renders Prometheus text. `logs` sets up logging, and `loop_lag` measures the event loop.
`trace_exporter` sends the spans that the gateway records.
Imported by `router.app`, `router.admin`, `router.process` and `router.cli`.
"""
