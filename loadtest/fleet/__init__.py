"""Fleets of real processes on loopback, and ``warmroute fleet``.

They are embedded workers or vLLM without a GPU, with the gateway in front. Nouns: `Process` (a child process whose
output is read), `VllmWorker` (the settings of one vLLM server), `start_vllm`.
"""
