"""What vLLM's CPU build lacks to move KV cache with NIXL on one small machine; loaded in each of its processes."""

import os
import time

_REGISTERED = []


def register():
    """Change vLLM once per process."""
    if _REGISTERED:
        return
    _REGISTERED.append(True)
    import torch
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

    if not torch.accelerator.is_available():
        torch.accelerator.current_device_index = lambda: 0  # Mooncake asks for it
    # Without this, NIXL pins every worker to the last core.
    CpuPlatform.discover_numa_topology = classmethod(lambda cls: [])
    step = KVConnectorModelRunnerMixin.kv_connector_no_forward

    def slow(*arguments, **named):
        """A worker that waits for KV cache would spin."""
        time.sleep(0.002)
        return step(*arguments, **named)

    KVConnectorModelRunnerMixin.kv_connector_no_forward = staticmethod(slow)
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    _let_the_agent_sleep()


def _let_the_agent_sleep():
    """NIXL's progress thread polls by default, which takes most of a core per idle worker."""
    import nixl._api as api

    agent = api.nixlBind.nixlAgent

    def make(name, config, *arguments, **named):
        config.pthrDelay = 2_000
        return agent(name, config, *arguments, **named)

    api.nixlBind.nixlAgent = make
