"""Measure the worker that the command names, and write its profile."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx

from backends.engine.profile import (
    OtherFingerprint,
    Profile,
    UnknownProfile,
    check_fingerprint,
    load_profile,
)
from backends.engine.profile_text import profile_text
from backends.vllm.control import WorkerClient
from backends.worker import Endpoint, parse_endpoint
from loadtest.calibrate.readings import CalibrationError, FittedCosts, Kind, fit_costs, table
from loadtest.calibrate.worker.calls import Calls
from loadtest.calibrate.worker.facts import Given, MeasuredWorker, read_worker, running_requests
from loadtest.calibrate.worker.measure import Measurement
from loadtest.calibrate.worker.plan import CalibrationPlan, plan


def calibrate(args: argparse.Namespace) -> int:
    """Make the profile, or compare one with the worker; return the exit code.

    Raises:
        CalibrationError: the message says why there is no profile.
    """
    if args.check is not None:
        return asyncio.run(_check(args))
    if args.out is not None and args.out.exists():
        raise CalibrationError(f"{args.out} exists; name another file, or remove it")
    text = profile_text(asyncio.run(_measured(args)))
    if args.out is None:
        sys.stdout.write(text)
    else:
        _write(args.out, text)
        say(f"wrote {args.out}; use it with --profile {args.out}")
    return 0


def say(line: str) -> None:
    """Print to standard error, because the profile goes to standard output."""
    sys.stderr.write(f"{line}\n")


async def _measured(args: argparse.Namespace) -> Profile:
    async with _worker(args) as (client, http, endpoint):
        worker = await read_worker(client, endpoint, _given(args))
        steps = plan(worker.limits)
        running = await running_requests(client, endpoint)
        if running and not args.shared:
            raise CalibrationError(f"{endpoint.url} serves {running} requests; drain it first, or add --shared")
        say("\n".join(steps.lines()))
        measurement = Measurement(Calls(http, endpoint.url, worker.model), worker, args.shared, say, random.Random())
        fitted = fit_costs(await measurement.readings(steps))
    say(table(fitted))
    return _profile(worker, steps, fitted)


async def _check(args: argparse.Namespace) -> int:
    try:
        profile = load_profile(str(args.check))
        async with _worker(args) as (client, _, endpoint):
            worker = await read_worker(client, endpoint, _given(args))
        unknown = check_fingerprint(profile, worker.fingerprint)
    except (UnknownProfile, OtherFingerprint) as error:
        raise CalibrationError(str(error)) from None
    say(f"{args.check} is a profile of {endpoint.url}")
    if unknown:
        say(f"not compared, because one of both does not know it: {', '.join(unknown)}")
    return 0


@asynccontextmanager
async def _worker(args: argparse.Namespace) -> AsyncIterator[tuple[WorkerClient, httpx.AsyncClient, Endpoint]]:
    try:
        endpoint = parse_endpoint(args.worker)
    except ValueError as error:
        raise CalibrationError(f"{args.worker!r} is no worker: {error}") from None
    key = os.environ.get("OPENAI_API_KEY")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    tls = ssl.create_default_context() if endpoint.scheme == "https" else None
    async with (
        WorkerClient(api_key=key, tls=lambda _: tls) as client,
        httpx.AsyncClient(headers=headers, trust_env=False) as http,
    ):
        yield client, http, endpoint


def _given(args: argparse.Namespace) -> Given:
    return Given(args.max_num_batched_tokens, args.max_num_seqs, args.hardware)


def _profile(worker: MeasuredWorker, steps: CalibrationPlan, fitted: FittedCosts) -> Profile:
    limits = worker.limits
    fingerprint = replace(worker.fingerprint, date=datetime.now(UTC).date().isoformat())
    gpus = (fingerprint.tensor_parallel or 1) * (fingerprint.pipeline_parallel or 1)
    return Profile(
        name="",
        model=worker.model,
        hardware=f"{gpus} x {fingerprint.gpu or 'unknown GPU'}",
        provenance=(
            f"Measured on {fingerprint.date} by `warmroute calibrate` on {fingerprint.engine or 'an unknown engine'}: "
            f"{steps.requests()} requests to\nan idle worker. Relative error, mean / max: {_errors(fitted)}.\n"
            "Mixed steps are not fitted. KV tokens: as the worker reports them."
        ),
        kv_tokens=limits.kv_tokens,
        block_size=limits.block_size,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        prefill=fitted.prefill,
        decode=fitted.decode,
        fingerprint=fingerprint,
    )


def _errors(fitted: FittedCosts) -> str:
    return ", ".join(f"{kind} {fitted.mean(kind):.1%} / {fitted.worst(kind):.1%}" for kind in Kind)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CalibrationError(f"{path}: {error}") from error
