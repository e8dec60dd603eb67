"""The profile of a running worker, and its comparison with one that exists."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import httpx

from backends.engine.profile import OtherFingerprint, Profile, UnknownProfile, check_fingerprint, load_profile
from backends.vllm.control import WorkerClient
from backends.worker import Endpoint, parse_endpoint
from loadtest.calibrate.readings import CalibrationError, FittedCosts, Kind, Reading, fit_costs, table
from loadtest.calibrate.worker.calls import Calls
from loadtest.calibrate.worker.facts import MeasuredWorker, Target, read_fingerprint, read_worker, running_requests
from loadtest.calibrate.worker.measure import Measurement
from loadtest.calibrate.worker.plan import CalibrationPlan, plan

Say = Callable[[str], None]


async def profile_of_worker(target: Target, say: Say) -> Profile:
    """Measure the worker.

    Raises:
        CalibrationError: the message says why there is no profile.
    """
    worker, steps, readings = await measured(target, lambda steps: steps, say)
    fitted = fit_costs(readings)
    say(table(fitted))
    provenance = (
        f"Measured on {today()} by `warmroute calibrate` on {worker.fingerprint.engine or 'an unknown engine'}: "
        f"{steps.requests()} requests to an idle\nworker. Relative error, mean / max: {errors(fitted)}. "
        "Mixed steps are not fitted.\nKV tokens: as the worker reports them."
    )
    return profile(worker, fitted, provenance)


async def measured(
    target: Target, chosen: Callable[[CalibrationPlan], CalibrationPlan], say: Say
) -> tuple[MeasuredWorker, CalibrationPlan, Sequence[Reading]]:
    """Measure what is `chosen` of the plan for the worker."""
    async with _connected(target.url) as (client, http, endpoint):
        worker = await read_worker(client, endpoint, target)
        steps = chosen(plan(worker.limits))
        running = await running_requests(client, endpoint)
        if running:
            raise CalibrationError(f"{endpoint.url} serves {running} requests; drain it first")
        say("\n".join(steps.lines()))
        calls = Calls(http, endpoint.url, worker.model)
        measurement = Measurement(calls, worker, say, random.Random())
        return worker, steps, await measurement.readings(steps)


async def check(name: str, target: Target) -> list[str]:
    """Compare the profile in the file `name` with the worker; return the fields that one of both does not know.

    Raises:
        CalibrationError: they differ, or one of both cannot be read.
    """
    try:
        known = load_profile(name)
        async with _connected(target.url) as (client, _, endpoint):
            found, _, _ = await read_fingerprint(client, endpoint, target)
        return check_fingerprint(known, found)
    except (UnknownProfile, OtherFingerprint) as error:
        raise CalibrationError(str(error)) from None


def profile(worker: MeasuredWorker, fitted: FittedCosts, provenance: str) -> Profile:
    limits = worker.limits
    fingerprint = replace(worker.fingerprint, date=today())
    gpus = (fingerprint.tensor_parallel or 1) * (fingerprint.pipeline_parallel or 1)
    return Profile(
        name="",
        model=worker.model,
        hardware=f"{gpus} x {fingerprint.gpu or 'unknown GPU'}",
        provenance=provenance,
        kv_tokens=limits.kv_tokens,
        block_size=limits.block_size,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        prefill=fitted.prefill,
        decode=fitted.decode,
        fingerprint=fingerprint,
    )


def errors(fitted: FittedCosts) -> str:
    kinds = {one.reading.kind for one in fitted.residuals}
    return ", ".join(f"{kind} {fitted.mean(kind):.1%} / {fitted.worst(kind):.1%}" for kind in Kind if kind in kinds)


def today() -> str:
    return datetime.now(UTC).date().isoformat()


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[WorkerClient, httpx.AsyncClient, Endpoint]]:
    try:
        endpoint = parse_endpoint(url)
    except ValueError as error:
        raise CalibrationError(f"{url!r} is no worker: {error}") from None
    key = os.environ.get("OPENAI_API_KEY")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    tls = ssl.create_default_context() if endpoint.scheme == "https" else None
    async with (
        WorkerClient(api_key=key, tls=lambda _: tls) as client,
        httpx.AsyncClient(headers=headers, trust_env=False) as http,
    ):
        yield client, http, endpoint
