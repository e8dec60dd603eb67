"""Traces of requests, pure: which trace a request belongs to, and how its spans are written.

`context` reads and writes W3C trace context, `attributes` is the table of attribute names, and `spans` writes spans as
OTLP's JSON. `settings` checks the settings. The gateway records a request's spans, and `router.telemetry` sends them.
"""
