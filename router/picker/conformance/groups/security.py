"""J: headers that a client sends, and that only a picker may set."""

from __future__ import annotations

from router.picker.conformance.answers import expect_within, overwrites
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile, Given
from router.picker.conformance.groups.subset import UNKNOWN
from router.picker.conformance.hook import ALL, HookAction
from router.picker.conformance.outcome import Requirement, expect
from router.picker.protocol.names import DESTINATION, FAIRNESS, OBJECTIVE, PD_HEADERS, TESTING


async def destination_of_a_client(bench: Bench) -> None:
    for request in (bench.get, bench.chat):
        answer = await bench.ask(request(headers=[(DESTINATION, UNKNOWN)]))
        expect(UNKNOWN not in answer.endpoints(), "the client's endpoint was picked")
        option = answer.option(DESTINATION)
        assert option is not None
        expect(overwrites(option), "the client's header stays beside the pick")


async def pd_headers_of_a_client(bench: Bench) -> None:
    answer = await bench.ask(bench.chat(headers=[(name, UNKNOWN) for name in PD_HEADERS]))
    answer.picked()
    kept = [name for name in PD_HEADERS if not _replaced(name, answer.removed(name), answer.header(name))]
    expect(not kept, f"the client's {', '.join(kept)} would reach the worker")


def _replaced(name: str, removed: bool, value: str | None) -> bool:
    return removed or (value is not None and UNKNOWN not in value)


async def objectives_of_a_client(bench: Bench) -> None:
    objective = bench.fixture.sheddable
    async with bench.changed(HookAction.SATURATE, ALL, undo=HookAction.RELEASE):
        answer = await bench.offer(bench.chat(headers=[(OBJECTIVE, objective), (FAIRNESS, "another tenant")]))
    if answer is not None:
        expect(answer.refusal is None, f"the client's objective counted: {answer.described()}")
        answer.picked()


async def testing_header(bench: Bench) -> None:
    for value in (UNKNOWN, UNKNOWN.partition(":")[0]):
        answer = await bench.ask(bench.chat(headers=[(TESTING, value)]))
        if answer.refusal is None:
            expect_within(answer.endpoints(), bench.endpoints)


_MUST, _SHOULD = Requirement.MUST, Requirement.SHOULD
_CORE = CaseProfile.CORE

GROUP = CaseGroup(
    "J",
    "Security",
    (
        ConformanceCase(87, "A client's destination header is replaced.", "P", _MUST, _CORE, destination_of_a_client),
        ConformanceCase(
            88,
            "A client's headers for prefill and decode are removed or replaced.",
            "L",
            _MUST,
            CaseProfile.PD,
            pd_headers_of_a_client,
        ),
        ConformanceCase(
            89,
            "A client's objective counts only where it may.",
            "L",
            _SHOULD,
            CaseProfile.SHEDDING,
            objectives_of_a_client,
            actions=(HookAction.SATURATE, HookAction.RELEASE),
            given=(Given.SHEDDABLE, Given.IGNORES_OBJECTIVES),
        ),
        ConformanceCase(
            90,
            "GAIE's testing header leads to no endpoint outside the pool.",
            "P",
            _MUST,
            _CORE,
            testing_header,
            endpoints=1,
        ),
    ),
)
