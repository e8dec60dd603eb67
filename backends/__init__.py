"""Descriptions of workers, and the protocols to speak to them.

`worker` describes endpoints and the facts that a probe can learn; `vllm` is vLLM's dialect (HTTP, rendering, KV events,
metrics); `discovery` has the sources that name workers; `engine` is a pure model of one worker; `simulated` puts that
model behind vLLM's HTTP. `router` and `loadtest` import this package; it imports neither.
"""
