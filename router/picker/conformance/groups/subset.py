"""D: the subset of the pool that a gateway names."""

from __future__ import annotations

from collections.abc import Sequence

from router.picker.conformance.answers import expect_within
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile, address_of
from router.picker.conformance.hook import HookAction
from router.picker.conformance.outcome import CaseSkipped, Requirement, expect
from router.picker.protocol.names import DESTINATION, LB_NAMESPACE

UNKNOWN = "203.0.113.77:8000"
"""TEST-NET-3: in no pool."""


async def as_list(bench: Bench) -> None:
    for endpoint in bench.endpoints:
        expect_within((await bench.ask(bench.chat(subset=[endpoint]))).endpoints(), [endpoint])


async def as_text(bench: Bench) -> None:
    await _as_text(bench, ",")


async def with_spaces(bench: Bench) -> None:
    await _as_text(bench, " , ")


async def _as_text(bench: Bench, separator: str) -> None:
    for endpoint in bench.endpoints:
        subset = separator.join((UNKNOWN, endpoint))
        expect_within((await bench.ask(bench.chat(subset=subset))).endpoints(), [endpoint])


async def address_alone(bench: Bench) -> None:
    for address in dict.fromkeys(map(address_of, bench.endpoints)):
        allowed = [endpoint for endpoint in bench.endpoints if address_of(endpoint) == address]
        expect_within((await bench.ask(bench.chat(subset=[address]))).endpoints(), allowed)


async def nobody_known(bench: Bench) -> None:
    (await bench.ask(bench.chat(subset=[UNKNOWN]))).refused(503)


async def empty(bench: Bench) -> None:
    (await bench.ask(bench.chat(subset=[]))).refused(503)


async def absent(bench: Bench) -> None:
    for request in (bench.chat(), bench.chat(subset=[UNKNOWN], subset_key="another-key")):
        expect_within((await bench.ask(request)).endpoints()[:1], bench.endpoints)


async def not_ready(bench: Bench) -> None:
    endpoint = bench.endpoints[0]
    async with bench.changed(HookAction.NOT_READY, endpoint, undo=HookAction.READY):
        (await bench.ask(bench.chat(subset=[endpoint]))).refused(503)


async def without_body(bench: Bench) -> None:
    for endpoint in bench.endpoints:
        expect_within((await bench.ask(bench.get(subset=[endpoint]))).endpoints(), [endpoint])
    (await bench.ask(bench.get(subset=[UNKNOWN]))).refused(503)


async def every_member(bench: Bench) -> str:
    subset = bench.endpoints[:2]
    longest = 0
    for _ in range(10):
        endpoints = (await bench.ask(bench.chat(subset=subset))).endpoints()
        expect_within(endpoints, subset)
        longest = max(longest, len(endpoints))
    return f"lists of up to {longest}"


async def other_namespace(bench: Bench) -> None:
    picked = (await bench.ask(bench.chat(subset=[UNKNOWN], subset_namespace=LB_NAMESPACE))).endpoints()
    expect_within(picked[:1], bench.endpoints)


async def list_order(bench: Bench) -> None:
    lengths = []
    for subset in _orders(bench.endpoints[:2]):
        answer = await bench.ask(bench.chat(subset=subset))
        value = answer.metadata(DESTINATION)
        said = [one.strip() for one in value.string_value.split(",")] if value is not None else []
        expect(answer.endpoints() == said, f"the header lists {answer.endpoints()}, the metadata {said}")
        lengths.append(len(said))
    if max(lengths) < 2:
        raise CaseSkipped("the picker names one endpoint, without a fallback")


def _orders(pair: Sequence[str]) -> list[list[str]]:
    return [[*pair], [*reversed(pair)]]


_MUST, _SHOULD = Requirement.MUST, Requirement.SHOULD
_CORE = CaseProfile.CORE
_READY = (HookAction.NOT_READY, HookAction.READY)

GROUP = CaseGroup(
    "D",
    "Subset",
    (
        ConformanceCase(34, "A list: the pick is in it.", "P", _MUST, _CORE, as_list, endpoints=2),
        ConformanceCase(35, "A comma string is a list, too.", "P", _SHOULD, _CORE, as_text, endpoints=2),
        ConformanceCase(36, "Spaces around commas do not count.", "P", _SHOULD, _CORE, with_spaces, endpoints=2),
        ConformanceCase(
            37, "An address without a port means all its ports.", "L", _SHOULD, _CORE, address_alone, endpoints=2
        ),
        ConformanceCase(38, "Unknown addresses alone: ImmediateResponse 503.", "P", _MUST, _CORE, nobody_known),
        ConformanceCase(39, "An empty list: ImmediateResponse 503.", "P", _MUST, _CORE, empty),
        ConformanceCase(40, "Without the key, the whole pool is eligible.", "P", _MUST, _CORE, absent, endpoints=1),
        ConformanceCase(
            41,
            "An endpoint that is not ready, alone: ImmediateResponse 503.",
            "P",
            _MUST,
            _CORE,
            not_ready,
            endpoints=2,
            actions=_READY,
        ),
        ConformanceCase(
            42, "The subset holds for requests without a body.", "P", _MUST, _CORE, without_body, endpoints=2
        ),
        ConformanceCase(43, "All picks of a list are in the subset.", "P", _MUST, _CORE, every_member, endpoints=3),
        ConformanceCase(
            44, "The key in another namespace is no subset.", "P", _MUST, _CORE, other_namespace, endpoints=1
        ),
        ConformanceCase(
            45,
            "A list of picks has the same order in header and metadata.",
            "P",
            _SHOULD,
            _CORE,
            list_order,
            endpoints=2,
        ),
    ),
)
