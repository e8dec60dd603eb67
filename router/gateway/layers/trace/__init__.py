"""The trace of a request as OpenTelemetry spans."""
