"""F: what a saturated picker refuses, and what it keeps waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.picker.conformance.answers import PickerAnswer, set_in, text_of
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile, Given
from router.picker.conformance.hook import ALL, HookAction
from router.picker.conformance.outcome import CaseFailed, CaseSkipped, Requirement, expect
from router.picker.conformance.phases import ask
from router.picker.conformance.requests import GatewayRequest
from router.picker.conformance.stream import NoAnswer
from router.picker.protocol.ext_proc_pb2 import ImmediateResponse
from router.picker.protocol.names import DROP_REASON, FAIRNESS, OBJECTIVE, OLD_FAIRNESS, OLD_OBJECTIVE

DROP_REASONS = frozenset(
    {
        "rejected-saturated",
        "rejected-no-endpoints",
        "rejected-ttl-expired",
        "rejected-context-cancelled",
        "rejected-shutting-down",
        "evicted",
        "evicted-queue-pressure",
        "evicted-priority",
    }
)


@asynccontextmanager
async def _saturated(bench: Bench) -> AsyncIterator[None]:
    async with bench.changed(HookAction.SATURATE, ALL, undo=HookAction.RELEASE):
        yield


def _with_objective(bench: Bench, objective: str, header: str = OBJECTIVE) -> GatewayRequest:
    return bench.chat(headers=[(header, objective)])


async def _shed(bench: Bench) -> ImmediateResponse:
    async with _saturated(bench):
        return (await bench.ask(_with_objective(bench, bench.fixture.sheddable))).refused(429)


async def sheddable(bench: Bench) -> None:
    await _shed(bench)


async def not_sheddable(bench: Bench) -> str:
    async with _saturated(bench):
        return _picked_or_queued(await bench.offer(bench.chat()))


def _picked_or_queued(answer: PickerAnswer | None) -> str:
    if answer is None:
        return "queued"
    answer.picked()
    return "picked"


def _header(refusal: ImmediateResponse, name: str) -> str | None:
    options = set_in(refusal.headers, name)
    return text_of(options[-1]) if options else None


async def drop_reason(bench: Bench) -> str:
    reason = _header(await _shed(bench), DROP_REASON)
    expect(reason in DROP_REASONS, f"{DROP_REASON} is {reason or 'missing'}")
    return str(reason)


async def retry_after(bench: Bench) -> str:
    value = _header(await _shed(bench), "retry-after")
    expect(value is None or (value.isascii() and value.isdigit()), f"Retry-After is {value!r}")
    return "not sent" if value is None else f"{value} s"


async def error_body(bench: Bench) -> None:
    refusal = await _shed(bench)
    kind = (_header(refusal, "content-type") or "missing").split(";")[0].strip()
    expect(kind == "application/json", f"content-type is {kind}")
    try:
        json.loads(refusal.body)
    except ValueError:
        raise CaseFailed(f"the body is no JSON: {refusal.body[:80]!r}") from None


async def cancelled_in_queue(bench: Bench) -> None:
    async with _saturated(bench):
        before = await bench.count(HookAction.LEDGER)
        if await bench.offer(bench.chat()) is not None:
            raise CaseSkipped("the picker does not queue")
        after = await bench.counts_to(HookAction.LEDGER, ALL, before)
        expect(after == before, f"the ledger has {after:g} requests after the cancel, {before:g} before the request")


async def urgent_first(bench: Bench) -> None:
    usual = bench.chat()
    urgent = _with_objective(bench, bench.fixture.urgent)
    async with _saturated(bench):
        asked = []
        for request in (usual, urgent):
            asked.append(asyncio.ensure_future(_answered_at(bench, request)))
            await asyncio.sleep(bench.patience.silence_s)
        try:
            if any(one.done() for one in asked):
                raise CaseSkipped("the picker does not queue")
            await bench.act(HookAction.RELEASE)
            usual_at, urgent_at = await asyncio.gather(*asked)
        finally:
            for one in asked:
                one.cancel()
            await asyncio.wait(asked)
    late_ms = 1e3 * (urgent_at - usual_at)
    expect(late_ms <= 0, f"the urgent request was picked for {late_ms:.1f} ms after the usual one")


async def _answered_at(bench: Bench, request: GatewayRequest) -> float:
    async with bench.stream() as stream:
        (await ask(stream, request)).picked()
        return asyncio.get_running_loop().time()


async def names_of_headers(bench: Bench) -> None:
    async with _saturated(bench):
        for objective, fairness in ((OBJECTIVE, FAIRNESS), (OLD_OBJECTIVE, OLD_FAIRNESS)):
            request = bench.chat(headers=[(objective, bench.fixture.sheddable), (fairness, "tenant-a")])
            try:
                answer = await bench.ask(request)
            except NoAnswer:
                raise CaseFailed(f"{objective} is not read: the request waits") from None
            expect(answer.refusal is not None, f"{objective} is not read: {answer.described()}")
            answer.refused(429)


_MUST, _SHOULD, _MAY = Requirement.MUST, Requirement.SHOULD, Requirement.MAY
_SHEDDING = CaseProfile.SHEDDING
_LOAD = (HookAction.SATURATE, HookAction.RELEASE)
_SHEDDABLE = (Given.SHEDDABLE,)

GROUP = CaseGroup(
    "F",
    "Shedding",
    (
        ConformanceCase(
            55,
            "Saturated: a sheddable request gets 429.",
            "P",
            _MUST,
            _SHEDDING,
            sheddable,
            actions=_LOAD,
            given=_SHEDDABLE,
        ),
        ConformanceCase(
            56,
            "Saturated: another request is picked for, or waits.",
            "P",
            _MUST,
            _SHEDDING,
            not_sheddable,
            actions=_LOAD,
        ),
        ConformanceCase(
            57,
            "A refusal says why, in a header with a known reason.",
            "L",
            _SHOULD,
            CaseProfile.LLM_D,
            drop_reason,
            actions=_LOAD,
            given=_SHEDDABLE,
        ),
        ConformanceCase(
            58,
            "`Retry-After` of a refusal is an integer, or not sent.",
            "RFC 9110",
            _SHOULD,
            _SHEDDING,
            retry_after,
            actions=_LOAD,
            given=_SHEDDABLE,
        ),
        ConformanceCase(
            59,
            "A refusal has a JSON body and its content type.",
            "OpenAI API",
            _SHOULD,
            _SHEDDING,
            error_body,
            actions=_LOAD,
            given=_SHEDDABLE,
        ),
        ConformanceCase(
            60,
            "A request that is cancelled while it waits leaves no trace.",
            "P",
            _MUST,
            _SHEDDING,
            cancelled_in_queue,
            actions=(*_LOAD, HookAction.LEDGER),
        ),
        ConformanceCase(
            61,
            "Of waiting requests, the one with the higher priority goes first.",
            "L",
            _SHOULD,
            _SHEDDING,
            urgent_first,
            actions=_LOAD,
            given=(Given.URGENT,),
        ),
        ConformanceCase(
            62,
            "Objective and fairness headers work by their new and old names.",
            "L",
            _SHOULD,
            CaseProfile.LLM_D,
            names_of_headers,
            actions=_LOAD,
            given=_SHEDDABLE,
        ),
    ),
)
