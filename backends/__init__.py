"""What a worker is and how to speak to it.

`worker` names endpoints and what a probe can learn; `vllm` is vLLM's dialect (HTTP, rendering, KV events, metrics);
`engine` a pure model of one worker; `simulated` that model behind vLLM's HTTP. Imported by `router` and `loadtest`;
imports nothing of ours outside itself.
"""
