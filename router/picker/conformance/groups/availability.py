"""E: endpoints that come, go and are not ready."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import AsyncExitStack

from router.picker.conformance.answers import expect_within
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile, address_of
from router.picker.conformance.hook import HookAction
from router.picker.conformance.outcome import CaseFailed, CaseSkipped, Requirement, expect
from router.picker.conformance.stream import NoAnswer

_PAUSE_S = 0.01


async def nobody_ready(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        for endpoint in bench.endpoints:
            await bench.act(HookAction.NOT_READY, endpoint)
            stack.push_async_callback(bench.act, HookAction.READY, endpoint)
        await bench.settle()
        for request in (bench.chat(), bench.get()):
            (await bench.ask(request)).refused(503)
    await bench.settle()


async def not_ready(bench: Bench) -> None:
    async with bench.changed(HookAction.NOT_READY, bench.endpoints[0], undo=HookAction.READY):
        await _expect_unused(bench, bench.endpoints[0])


async def terminating(bench: Bench) -> None:
    async with bench.changed(HookAction.TERMINATE, bench.endpoints[0], undo=HookAction.ADD):
        await _expect_unused(bench, bench.endpoints[0])


async def narrowed(bench: Bench) -> None:
    async with bench.changed(HookAction.NARROW, bench.endpoints[0], undo=HookAction.WIDEN):
        await _expect_unused(bench, bench.endpoints[0])


async def _expect_unused(bench: Bench, endpoint: str) -> None:
    answers = await bench.spread(bench.chat, bench.effort.spread)
    hits = sum(endpoint in answer.endpoints() for answer in answers)
    expect(not hits, f"{hits} of {len(answers)} requests got {endpoint}")


async def back_again(bench: Bench) -> str:
    endpoint = bench.endpoints[0]
    async with bench.changed(HookAction.NOT_READY, endpoint, undo=HookAction.READY):
        pass
    return await _used_within(bench, endpoint, time.monotonic())


async def added(bench: Bench) -> str:
    endpoint = bench.endpoints[0]
    await bench.act(HookAction.REMOVE, endpoint)
    try:
        await bench.settle()
        await _expect_unused(bench, endpoint)
    finally:
        since = time.monotonic()
        await bench.act(HookAction.ADD, endpoint)
    return await _used_within(bench, endpoint, since)


async def _used_within(bench: Bench, endpoint: str, since: float) -> str:
    async def used() -> bool:
        answer = await bench.ask(bench.chat(subset=[endpoint]))
        return answer.refusal is None and answer.endpoints()[:1] == [endpoint]

    expect(await bench.until(used, bench.patience.arrive_s), f"{endpoint} is not used again")
    return f"used after {time.monotonic() - since:.2f} s"


async def all_ports(bench: Bench) -> str:
    ports = defaultdict(set)
    for endpoint in bench.endpoints:
        ports[address_of(endpoint)].add(endpoint)
    several = max(ports.values(), key=len)
    if len(several) < 2:
        raise CaseSkipped("no two endpoints have the same address")
    answers = await bench.spread(lambda: bench.chat(subset=sorted(several)), bench.effort.spread)
    unused = several - {answer.endpoints()[0] for answer in answers}
    expect(not unused, f"{len(answers)} requests at once left {', '.join(sorted(unused))} unused")
    return f"{len(several)} ports"


async def under_load(bench: Bench) -> str:
    """Replace the pool half by half. A pick may be late by the time to settle, and not by more."""
    half = len(bench.endpoints) // 2
    load = asyncio.ensure_future(_load(bench, gone_since := {}))
    try:
        for leaving in (bench.endpoints[:half], bench.endpoints[half:]):
            for endpoint in leaving:
                await bench.act(HookAction.REMOVE, endpoint)
                gone_since[endpoint] = time.monotonic() + bench.patience.settle_s
            await asyncio.sleep(2 * bench.patience.settle_s)
            for endpoint in leaving:
                del gone_since[endpoint]
                await bench.act(HookAction.ADD, endpoint)
            await bench.settle()
            if load.done():
                break
    finally:
        load.cancel()
        await asyncio.wait([load])
    if not load.cancelled():
        load.result()
    return ""


async def _load(bench: Bench, gone_since: dict[str, float]) -> None:
    while True:
        began = time.monotonic()
        picks = (await bench.ask(bench.chat())).endpoints()
        expect_within(picks[:1], bench.endpoints)
        late = [pick for pick in picks if began > gone_since.get(pick, began)]
        expect(not late, f"{', '.join(late)} was picked {bench.patience.settle_s:g} s after it left")
        await asyncio.sleep(_PAUSE_S)


async def in_time(bench: Bench) -> str:
    times = []
    for number in range(bench.effort.timed_picks):
        request = bench.chat(filler_bytes=100_000)
        began = time.perf_counter()
        try:
            (await bench.ask(request)).picked()
        except NoAnswer as error:
            raise CaseFailed(f"pick {number + 1} of {bench.effort.timed_picks}: {error}") from None
        times.append(time.perf_counter() - began)
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(0.99 * (len(times) - 1))]
    said = f"p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms, at most {1e3 * times[-1]:.1f} ms"
    expect(p99 < bench.patience.pick_p99_s, said)
    return said


_MUST, _SHOULD = Requirement.MUST, Requirement.SHOULD
_CORE = CaseProfile.CORE
_READY = (HookAction.NOT_READY, HookAction.READY)
_MEMBERSHIP = (HookAction.REMOVE, HookAction.ADD)

GROUP = CaseGroup(
    "E",
    "Availability",
    (
        ConformanceCase(
            46,
            "No endpoint is ready: ImmediateResponse 503, not a gRPC error.",
            "P",
            _MUST,
            _CORE,
            nobody_ready,
            endpoints=1,
            actions=_READY,
        ),
        ConformanceCase(
            47,
            "An endpoint that is not ready is not picked after 1 s.",
            "A",
            _MUST,
            _CORE,
            not_ready,
            endpoints=2,
            actions=_READY,
        ),
        ConformanceCase(
            48,
            "An endpoint that terminates is not picked after 1 s.",
            "A",
            _MUST,
            _CORE,
            terminating,
            endpoints=2,
            actions=(HookAction.TERMINATE, HookAction.ADD),
        ),
        ConformanceCase(
            49,
            "An endpoint that is ready again is picked again.",
            "A",
            _MUST,
            _CORE,
            back_again,
            endpoints=2,
            actions=_READY,
        ),
        ConformanceCase(50, "All ports of an address are used.", "A", _MUST, _CORE, all_ports, endpoints=2),
        ConformanceCase(
            51,
            "`active-ports` leaves a port out.",
            "A",
            _SHOULD,
            _CORE,
            narrowed,
            endpoints=2,
            actions=(HookAction.NARROW, HookAction.WIDEN),
        ),
        ConformanceCase(
            52, "A new endpoint is used within 5 s.", "A", _MUST, _CORE, added, endpoints=2, actions=_MEMBERSHIP
        ),
        ConformanceCase(
            53,
            "While endpoints leave under load, nothing outside the pool is picked.",
            "A",
            _MUST,
            _CORE,
            under_load,
            endpoints=2,
            actions=_MEMBERSHIP,
        ),
        ConformanceCase(
            54, "99 of 100 picks for 100 kB take less than 50 ms, and none hangs.", "X", _SHOULD, _CORE, in_time
        ),
    ),
)
