"""What a worker says of its deployment: ``/server_info``, which vLLM serves with ``VLLM_SERVER_DEV_MODE=1`` alone."""

from __future__ import annotations

import re

import msgspec

from backends.engine.profile import Fingerprint
from backends.foreign_json import json_decoder
from backends.vllm.control import RefusedError, WorkerClient
from backends.vllm.server_info import MAX_BYTES, PATH
from backends.worker import Endpoint

_GPU = re.compile(r"^GPU \d+: *", re.MULTILINE)


class _Model(msgspec.Struct, frozen=True):
    model: str | None = None
    revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None


class _Cache(msgspec.Struct, frozen=True):
    block_size: int | None = None
    cache_dtype: str | None = None


class _Parallel(msgspec.Struct, frozen=True):
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None


class _Scheduler(msgspec.Struct, frozen=True):
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None


class _DeployedConfig(msgspec.Struct, frozen=True):
    model_config: _Model = _Model()
    cache_config: _Cache = _Cache()
    parallel_config: _Parallel = _Parallel()
    scheduler_config: _Scheduler = _Scheduler()


class _System(msgspec.Struct, frozen=True):
    nvidia_gpu_models: str | None = None
    nvidia_driver_version: str | None = None
    torch_version: str | None = None


class _DeployedInfo(msgspec.Struct, frozen=True):
    vllm_config: _DeployedConfig = _DeployedConfig()
    system_env: _System = _System()


_DECODER = json_decoder(_DeployedInfo)


async def read_deployment(client: WorkerClient, endpoint: Endpoint, timeout_s: float) -> Fingerprint:
    """Return what the worker says; a field that it does not say is None.

    Raises:
        ProbeError: no answer, or a failure of the worker.
    """
    try:
        return parse_deployment(await client.get(endpoint, PATH, timeout_s, MAX_BYTES))
    except RefusedError as refusal:
        if refusal.status not in (404, 405):
            raise
        return Fingerprint()


def parse_deployment(body: bytes) -> Fingerprint:
    """Return the facts in an answer of ``/server_info``; none for another document."""
    try:
        info = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Fingerprint()
    config, system = info.vllm_config, info.system_env
    model, parallel, scheduler = config.model_config, config.parallel_config, config.scheduler_config
    # None in a document that has the model says that there is no quantisation; the revision may be any.
    quantization = "none" if model.model is not None and model.quantization is None else model.quantization
    return Fingerprint(
        gpu=gpu_names(system.nvidia_gpu_models),
        driver=system.nvidia_driver_version,
        torch=system.torch_version,
        model=model.model,
        model_revision=model.revision,
        dtype=None if model.dtype is None else model.dtype.removeprefix("torch."),
        quantization=quantization,
        kv_cache_dtype=config.cache_config.cache_dtype,
        tensor_parallel=parallel.tensor_parallel_size,
        pipeline_parallel=parallel.pipeline_parallel_size,
        data_parallel=parallel.data_parallel_size,
        expert_parallel=parallel.enable_expert_parallel,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        block_size=config.cache_config.block_size,
    )


def gpu_names(lines: str | None) -> str | None:
    """Return the models of vLLM's "GPU 0: NVIDIA H100", one line per GPU of the machine; the worker may use fewer."""
    names = {name.strip() for name in _GPU.sub("", lines or "").split("\n")}
    return ", ".join(sorted(names - {""})) or None
