"""``warmroute sidecar``: what a gateway beside one vLLM worker does in addition to a gateway.

`system.run` is the entry, and `system.SidecarProcess` a `router.app.GatewayProcess` with these parts: `observed_worker`
answers for the worker, `engine_check` finds an engine that hangs, `drain_port` serves ``POST /drain``, `registration`
keeps the worker's leases in `registries`, and `worker_process` is vLLM as a child process. `defaults` makes the
settings of one worker. Imported by `router.cli` only.
"""
