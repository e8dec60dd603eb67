"""What the worker says of itself before it is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backends.engine.profile import Fingerprint
from backends.vllm.control import ProbeError, WorkerClient
from backends.vllm.deployment import read_deployment
from backends.vllm.probe import probe, read_metrics
from backends.worker import Endpoint, RankCache, ServedModel
from loadtest.calibrate.readings import CalibrationError
from loadtest.calibrate.worker.plan import WorkerLimits

TIMEOUT_S = 30.0
"""vLLM's first answer of ``/server_info`` looks for compilers and GPUs."""


@dataclass(frozen=True, slots=True)
class Target:
    """A worker, and what the operator says of it, because one without ``VLLM_SERVER_DEV_MODE=1`` does not."""

    url: str
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    hardware: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredWorker:
    """`model` is the name to ask for; `fingerprint` has what the worker says and what the operator gave."""

    model: str
    limits: WorkerLimits
    fingerprint: Fingerprint


async def read_worker(client: WorkerClient, endpoint: Endpoint, given: Target) -> MeasuredWorker:
    """Ask the worker.

    Raises:
        CalibrationError: as `read_fingerprint`, or a limit is neither given nor said.
    """
    fingerprint, model, cache = await read_fingerprint(client, endpoint, given)
    batched = _known("max_num_batched_tokens", fingerprint.max_num_batched_tokens)
    seqs = _known("max_num_seqs", fingerprint.max_num_seqs)
    tokens = cache.num_gpu_blocks * cache.block_size
    limits = WorkerLimits(model.max_model_len or tokens, tokens, cache.block_size, batched, seqs, cache.prefix_caching)
    return MeasuredWorker(model.id, limits, fingerprint)


async def read_fingerprint(
    client: WorkerClient, endpoint: Endpoint, given: Target
) -> tuple[Fingerprint, ServedModel, RankCache]:
    """Ask the worker for all that it says of itself; the fields that it does not say are None.

    Raises:
        CalibrationError: it does not answer, has several ranks, or says another limit than the given one.
    """
    try:
        facts = await probe(client, endpoint, timeout_s=TIMEOUT_S)
        said = await read_deployment(client, endpoint, TIMEOUT_S)
    except ProbeError as error:
        raise CalibrationError(f"{endpoint.url}: {error.reason}") from None
    models = [model for model in facts.models if model.parent is None]
    if not models or 0 not in facts.caches:
        raise CalibrationError(f"{endpoint.url} does not say its model or its KV cache: {'; '.join(facts.notes)}")
    if facts.ranks != 1 or len(facts.caches) != 1:
        raise CalibrationError(f"{endpoint.url} has {facts.ranks} data-parallel ranks; calibrate a worker of one rank")
    cache, model = facts.caches[0], models[0]
    fingerprint = replace(
        said,
        gpu=given.hardware or said.gpu,
        engine=None if facts.version is None else f"vllm {facts.version}",
        model=said.model or model.root or model.id,
        kv_cache_dtype=said.kv_cache_dtype or cache.dtype,
        max_num_batched_tokens=_agreed(
            "max_num_batched_tokens", given.max_num_batched_tokens, said.max_num_batched_tokens
        ),
        max_num_seqs=_agreed("max_num_seqs", given.max_num_seqs, said.max_num_seqs),
        block_size=cache.block_size,
    )
    return fingerprint, model, cache


async def running_requests(client: WorkerClient, endpoint: Endpoint) -> int:
    """Return the requests that the worker runs or has waiting.

    Raises:
        CalibrationError: it does not say.
    """
    try:
        page = await read_metrics(client, endpoint, timeout_s=TIMEOUT_S)
    except ProbeError as error:
        raise CalibrationError(f"{endpoint.url}: {error.reason}") from None
    if not page.loads:
        raise CalibrationError(f"{endpoint.url} does not say its load; start it without --disable-log-stats")
    return sum(load.running + load.waiting for load in page.loads)


def _agreed(name: str, given: int | None, said: int | None) -> int | None:
    if given is not None and said is not None and given != said:
        raise CalibrationError(f"{name} is {said} on the worker, not {given}")
    return given or said


def _known(name: str, found: int | None) -> int:
    if found is None:
        flag = f"--{name.replace('_', '-')}"
        raise CalibrationError(f"the worker does not say {name} (it would with VLLM_SERVER_DEV_MODE=1); write {flag}")
    return found
