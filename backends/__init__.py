"""What a worker is and how to speak to it.

`worker` describes endpoints and what a probe can learn; `vllm` is vLLM's dialect (HTTP, rendering, KV events, metrics);
`engine` is a pure model of one worker; `simulated` puts that model behind vLLM's HTTP. `router` and `loadtest` import
this package; it imports neither.
"""
