"""I: the health service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile
from router.picker.conformance.hook import ALL, HookAction
from router.picker.conformance.outcome import Requirement, expect
from router.picker.protocol.names import EXTERNAL_PROCESSOR, INFERENCE_EXTENSION, LIVENESS, READINESS


@asynccontextmanager
async def _unsynced(bench: Bench) -> AsyncIterator[None]:
    async with bench.changed(HookAction.UNSYNC, ALL, undo=HookAction.SYNC):
        yield


async def _expect_status(bench: Bench, service: str, *expected: str) -> None:
    status = await bench.health.check(service)
    expect(status in expected, f"{service or 'the empty name'!r} is {status}, not {' or '.join(expected)}")


async def alive(bench: Bench) -> None:
    await _expect_status(bench, LIVENESS, "SERVING")
    async with _unsynced(bench):
        await _expect_status(bench, LIVENESS, "SERVING")


async def not_ready(bench: Bench) -> None:
    await _expect_status(bench, READINESS, "SERVING")
    async with _unsynced(bench):
        await _expect_status(bench, READINESS, "NOT_SERVING")


async def external_processor(bench: Bench) -> None:
    await _expect_status(bench, EXTERNAL_PROCESSOR, "SERVING")


async def names_in_manifests(bench: Bench) -> None:
    for service in ("", INFERENCE_EXTENSION):
        await _expect_status(bench, service, "SERVING")


async def unknown_name(bench: Bench) -> None:
    await _expect_status(bench, "no.such.service", "NOT_FOUND", "SERVICE_UNKNOWN")


async def watched(bench: Bench) -> None:
    async with bench.health.watch(READINESS) as watch:
        seen = [await watch.next(bench.patience.answer_s)]
        async with _unsynced(bench):
            seen.append(await watch.next(bench.patience.arrive_s))
        seen.append(await watch.next(bench.patience.arrive_s))
    expect(seen == ["SERVING", "NOT_SERVING", "SERVING"], f"Watch reported {', '.join(seen)}")


_MUST, _SHOULD = Requirement.MUST, Requirement.SHOULD
_CORE = CaseProfile.CORE
_SYNC = (HookAction.UNSYNC, HookAction.SYNC)

GROUP = CaseGroup(
    "I",
    "Health",
    (
        ConformanceCase(
            81, "`liveness` is SERVING, also before the pool is known.", "P", _MUST, _CORE, alive, actions=_SYNC
        ),
        ConformanceCase(
            82,
            "`readiness` is NOT_SERVING before the pool is known, and as a follower.",
            "P",
            _MUST,
            _CORE,
            not_ready,
            actions=_SYNC,
        ),
        ConformanceCase(
            83, "`envoy.service.ext_proc.v3.ExternalProcessor` is SERVING.", "P", _MUST, _CORE, external_processor
        ),
        ConformanceCase(
            84,
            "The empty name and `inference-extension` are SERVING.",
            "H, GAIE's manifests",
            _SHOULD,
            _CORE,
            names_in_manifests,
        ),
        ConformanceCase(85, "An unknown name is NOT_FOUND or SERVICE_UNKNOWN.", "H", _MUST, _CORE, unknown_name),
        ConformanceCase(86, "Watch reports changes.", "H", _SHOULD, _CORE, watched, actions=_SYNC),
    ),
)
