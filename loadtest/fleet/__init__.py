"""Fleets of real processes on loopback: embedded workers, vLLM without a GPU, the gateway in front. `warmroute fleet`.

Nouns: `Process` (a child whose output is read), `VllmWorker` (the settings of one vLLM server), `running_vllm`.
"""
