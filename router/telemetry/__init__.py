"""What is counted, measured and logged.

`catalogue` declares every metric, `instruments` are the plain counters and histograms behind them, `metrics` what
the other parts call, `exposition` the Prometheus text, `logs` the one place that sets up logging, `loop_lag` the
event loop's own pulse. Imported by `router.app`, `router.admin` and `router.cli`; nothing here decides anything.
"""
