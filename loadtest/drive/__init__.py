"""Real HTTP load over `http`, the client.

`chat` is one timed request, `seen` one whose end is classified; `conversations` plays a workload against a URL.
"""
