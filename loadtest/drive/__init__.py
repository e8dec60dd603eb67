"""Real HTTP load: `http` is the client, `chat` one timed request, `conversations` plays a workload against a URL."""
