"""A: what every pick has."""

from __future__ import annotations

from router.picker.conformance.answers import expect_within, overwrites
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile, parse_endpoint
from router.picker.conformance.outcome import CaseFailed, CaseSkipped, Requirement, expect
from router.picker.conformance.phases import ask, respond_headers
from router.picker.protocol.names import DESTINATION

_PROMPTS = 8


async def headers_alone(bench: Bench) -> None:
    answer = await bench.ask(bench.get())
    expect(answer.kinds[:1] == ["request_headers"], f"not an answer to the headers: {answer.described()}")
    answer.picked()


async def destination_header(bench: Bench) -> None:
    answer = await bench.ask(bench.chat())
    answer.picked()
    option = answer.option(DESTINATION)
    assert option is not None
    expect(overwrites(option), "a header of the client's would stay: append, or not OVERWRITE_IF_EXISTS_OR_ADD")


async def destination_metadata(bench: Bench) -> None:
    answer = await bench.ask(bench.chat())
    expect(answer.metadata(DESTINATION), f"no dynamic metadata envoy.lb / {DESTINATION}: {answer.described()}")


async def header_is_metadata(bench: Bench) -> None:
    answer = await bench.ask(bench.chat())
    value = answer.metadata(DESTINATION)
    said = value.string_value if value is not None else "nothing"
    expect(answer.picked() == said, f"the header says {answer.picked()}, the metadata {said}")


async def an_endpoint_of_the_pool(bench: Bench) -> None:
    endpoints = (await bench.ask(bench.chat())).endpoints()
    _expect_addresses(endpoints)
    expect_within(endpoints[:1], bench.endpoints)


def _expect_addresses(endpoints: list[str]) -> None:
    for endpoint in endpoints:
        try:
            usual = parse_endpoint(endpoint)
        except ValueError as error:
            raise CaseFailed(str(error)) from None
        expect(usual == endpoint, f"{endpoint} is not the usual spelling of {usual}")


async def route_cache(bench: Bench) -> None:
    answer = await bench.ask(bench.chat())
    answer.picked()
    expect(any(common.clear_route_cache for common in answer.common()), "clear_route_cache is false")


async def list_form(bench: Bench) -> str:
    endpoints = (await bench.ask(bench.chat())).endpoints()
    _expect_addresses(endpoints)
    expect_within(endpoints, bench.endpoints)
    return "one endpoint" if len(endpoints) == 1 else f"{len(endpoints)} endpoints"


async def brackets(bench: Bench) -> None:
    sixes = [endpoint for endpoint in bench.endpoints if endpoint.startswith("[")]
    if not sixes:
        raise CaseSkipped("no IPv6 endpoint was named")
    for endpoint in sixes:
        picked = (await bench.ask(bench.chat(subset=[endpoint]))).picked()
        expect(picked == endpoint, f"asked for {endpoint}, got {picked}")


async def metadata_is_text(bench: Bench) -> None:
    value = (await bench.ask(bench.chat())).metadata(DESTINATION)
    kind = value.WhichOneof("kind") if value is not None else "missing"
    expect(kind == "string_value", f"the metadata value is {kind}")


async def uses_several(bench: Bench) -> str:
    answers = await bench.spread(bench.chat, bench.effort.spread)
    used = {answer.endpoints()[0] for answer in answers}
    expect(len(used) > 1, f"all of {len(answers)} requests at once went to {', '.join(used)}")
    return f"{len(used)} endpoints"


async def same_prompt(bench: Bench) -> None:
    for _ in range(_PROMPTS):
        request = bench.chat(filler_bytes=8_000)
        picks = []
        for _ in range(2):
            async with bench.stream() as stream:
                picks.append((await ask(stream, request)).picked())
                if not stream.ended:
                    try:
                        await respond_headers(stream, ends=True)
                    except CaseSkipped:
                        pass  # the pick is all that it needs
        expect(picks[0] == picks[1], f"the same prompt of 8 kB went to {picks[0]}, then to {picks[1]}")


_MUST, _SHOULD, _MAY = Requirement.MUST, Requirement.SHOULD, Requirement.MAY
_CORE = CaseProfile.CORE

GROUP = CaseGroup(
    "A",
    "Core picking",
    (
        ConformanceCase(
            1, "A request without a body gets a pick in the answer to its headers.", "X, L", _MUST, _CORE, headers_alone
        ),
        ConformanceCase(
            2,
            "A request with a body gets the destination header, which replaces a client's.",
            "P",
            _MUST,
            _CORE,
            destination_header,
        ),
        ConformanceCase(
            3, "The pick is in the dynamic metadata `envoy.lb`, too.", "P", _MUST, _CORE, destination_metadata
        ),
        ConformanceCase(4, "Header and metadata are equal.", "P", _MUST, _CORE, header_is_metadata),
        ConformanceCase(
            5, "The pick is `ip:port` of the pool.", "P, A", _MUST, _CORE, an_endpoint_of_the_pool, endpoints=1
        ),
        ConformanceCase(6, "`clear_route_cache` is set.", "X", _SHOULD, _CORE, route_cache),
        ConformanceCase(
            7, "A list of picks has members of the pool, each once.", "P", _MUST, _CORE, list_form, endpoints=1
        ),
        ConformanceCase(8, "An IPv6 address is in brackets.", "P", _MUST, _CORE, brackets, endpoints=1),
        ConformanceCase(9, "The metadata value is a string.", "P", _MUST, _CORE, metadata_is_text),
        ConformanceCase(
            10, "100 requests at once use more than one idle endpoint.", "P", _SHOULD, _CORE, uses_several, endpoints=2
        ),
        ConformanceCase(11, "The same prompt goes to the same endpoint.", "L", _MAY, _CORE, same_prompt, endpoints=2),
    ),
)
