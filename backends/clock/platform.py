"""The platform that vLLM sees. Loaded by vLLM; not importable without it."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from vllm import exceptions
from vllm.platforms.interface import Platform, PlatformEnum

from backends.clock.settings import read_settings
from backends.engine.profile import load_profile

WORKER = "backends.clock.worker.ClockWorker"
DEFAULT_BLOCK_SIZE = 16
_HOST_GIB = 1 << 40
# Older versions treat only ValueError as the client's fault.
_Refusal: type[Exception] = getattr(exceptions, "VLLMValidationError", ValueError)
_log = logging.getLogger("vllm.warmroute_clock")


class ClockPlatform(Platform):
    """A device with the memory and the speed of the profile, which computes nothing."""

    _enum = PlatformEnum.OOT
    device_name = "clock"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Replace the GPU's worker by `ClockWorker`.

        Raises:
            ClockMisconfigured: a variable cannot be used.
            ValueError: the work of a flag cannot be modelled.
        """
        settings = read_settings(os.environ)
        if vllm_config.speculative_config is not None:
            raise ValueError("WARMROUTE_CLOCK=1 does not model speculative decoding; leave out --speculative-config")
        parallel = vllm_config.parallel_config
        parallel.worker_cls = WORKER
        shards = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        if shards > 1:
            raise ValueError(
                f"WARMROUTE_CLOCK=1 models a worker as one device: leave out --tensor-parallel-size and "
                f"--pipeline-parallel-size, and name a profile of {shards} GPUs by WARMROUTE_CLOCK_PROFILE"
            )
        cache = vllm_config.cache_config
        if cache is not None and cache.block_size is None:
            cache.block_size = DEFAULT_BLOCK_SIZE
        _log.warning("no GPU: step times of %s, time scale %g", settings.profile, settings.time_scale)

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: Any) -> None: ...

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any, *rest: Any) -> None:
        """Refuse requests that only a real model could answer.

        Prompt log-probabilities are not refused and come back empty, because a request for them makes vLLM compute a
        prompt without its cached prefix.

        Raises:
            VLLMValidationError: vLLM answers it with status 400.
        """
        if getattr(params, "logprobs", None) is not None:
            raise _Refusal("logprobs are not available: this worker runs without a model (WARMROUTE_CLOCK=1)")

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return load_profile(read_settings(os.environ).profile).hardware

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return _HOST_GIB

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        return 0.0

    @classmethod
    def inference_mode(cls) -> Any:
        """Return a context without effect: no gradients exist."""
        return torch.no_grad()

    @classmethod
    def set_device(cls, device: Any) -> None: ...

    @classmethod
    def manual_seed_all(cls, seed: int) -> None: ...

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def get_punica_wrapper(cls) -> str:
        """Return a kernel name, which vLLM requires; adapters are only names here."""
        return "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU"
