"""The profile of a model's kernels, scaled to a worker where there is one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from backends.engine.profile import Fingerprint, Profile
from loadtest.calibrate.kernels.compose import CPU_GRID, GPU_GRID, Ranks, compose
from loadtest.calibrate.kernels.shape import ModelShape, read_shape
from loadtest.calibrate.readings import CalibrationError, FittedCosts, fit_costs, scaled, table
from loadtest.calibrate.worker.facts import MeasuredWorker, Target
from loadtest.calibrate.worker.plan import CalibrationPlan, WorkerLimits
from loadtest.calibrate.worker.profile import Say, errors, measured, profile, today

UNKNOWN = "the time of the engine's scheduler, of its own kernels (fp8, fused attention and experts), and of sampling"


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The model in `config`. `limits` are taken from the worker where there is one; `hardware` is a name in place of
    torch's."""

    config: Path
    ranks: Ranks
    limits: WorkerLimits | None
    hardware: str | None = None


async def profile_of_kernels(source: KernelSource, worker: Target | None, say: Say) -> Profile:
    """Time the operations of a layer, compose steps of them and fit. With a worker, a few of its steps give a factor
    and a fixed part per step.

    Raises:
        CalibrationError: the message says why there is no profile.
    """
    shape = read_shape(source.config)
    if shape.heads % source.ranks.count:
        raise CalibrationError(f"{shape.heads} heads cannot be split over {source.ranks.count} ranks")
    if worker is None and source.limits is None:
        raise CalibrationError(
            "the KV cache and the batch limits are a worker's: name it by --worker, or write --kv-tokens, "
            "--max-num-batched-tokens and --max-num-seqs"
        )
    kernels, fingerprint = _timed(shape, source, say)
    method = f"of kernels timed with torch {fingerprint.torch} on {fingerprint.gpu}"
    if worker is None:
        assert source.limits is not None
        say(f"not known: {UNKNOWN}; name a worker by --worker")
        return _unscaled(source, source.limits, kernels, fingerprint, method)
    found, steps, readings = await measured(worker, _few, say)
    _check_same(found.fingerprint, replace(fingerprint, tensor_parallel=source.ranks.count))
    fitted = scaled(kernels, readings)
    say(table(fitted))
    provenance = (
        f"Composed on {today()} by `warmroute calibrate` {method},\nand scaled to {steps.requests()} requests to "
        f"{found.fingerprint.engine or 'an unknown engine'}. Relative error, mean / max: {errors(fitted)}.\n"
        "KV tokens: as the worker reports them."
    )
    return profile(found, fitted, provenance)


def _check_same(worker: Fingerprint, kernels: Fingerprint) -> None:
    for name in ("gpu", "tensor_parallel"):
        theirs, ours = getattr(worker, name), getattr(kernels, name)
        if None not in (theirs, ours) and theirs != ours:
            raise CalibrationError(f"{name} is {theirs} on the worker, and {ours} for the kernels")


def _timed(shape: ModelShape, source: KernelSource, say: Say) -> tuple[FittedCosts, Fingerprint]:
    try:
        from loadtest.calibrate.kernels.torch_timer import TorchTimer
    except ModuleNotFoundError as error:
        raise CalibrationError(f"kernels are timed with torch: pip install 'warmroute[calibrate]' ({error})") from None
    timer = TorchTimer()
    grid = GPU_GRID if timer.on_gpu else CPU_GRID
    fingerprint = timer.fingerprint()
    if source.hardware is not None:
        fingerprint = replace(fingerprint, gpu=source.hardware)
    say(f"timing kernels on {fingerprint.gpu}{'' if timer.on_gpu else ', in small shapes'}")
    room = source.limits.kv_tokens if source.limits is not None else max(grid.contexts) * max(grid.batches)
    readings = list(compose(shape, source.ranks, grid, timer.ms, room))
    fitted = fit_costs(readings, by_batch=shape.experts is not None)
    say(table(fitted))
    return fitted, fingerprint


def _few(steps: CalibrationPlan) -> CalibrationPlan:
    """Return two lengths and two batches: a factor and a fixed part are two unknowns each."""
    ends = (steps.prompts[0], steps.prompts[-1]), (steps.batches[0], steps.batches[-1])
    return replace(steps, prompts=ends[0], extension_tokens=None, batches=ends[1])


def _unscaled(
    source: KernelSource, limits: WorkerLimits, kernels: FittedCosts, fingerprint: Fingerprint, method: str
) -> Profile:
    name = source.config.name if source.config.is_dir() else source.config.absolute().parent.name
    said = replace(
        fingerprint,
        model=name,
        dtype="bfloat16",
        tensor_parallel=source.ranks.count,
        pipeline_parallel=1,
        data_parallel=1,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        block_size=limits.block_size,
    )
    provenance = (
        f"Composed on {today()} by `warmroute calibrate` {method}. Relative error of the fit, mean / max:\n"
        f"{errors(kernels)}. Not known: {UNKNOWN}.\nKV tokens: as given."
    )
    return profile(MeasuredWorker(name, limits, said), kernels, provenance)
