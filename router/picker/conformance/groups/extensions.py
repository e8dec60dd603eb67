"""K: prefill and decode, adapters, model rewrites and what else llm-d's picker sets."""

from __future__ import annotations

import json
import math
from collections import Counter

from router.picker.conformance.answers import PickerAnswer, expect_within
from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseGroup, ConformanceCase
from router.picker.conformance.fixture import CaseProfile, Given, address_of
from router.picker.conformance.outcome import CaseFailed, CaseSkipped, Requirement, expect
from router.picker.conformance.requests import chat
from router.picker.protocol.names import DP_RANK_HOST, PREFER, PREFILLER, SCORES

_LONG_PROMPT_BYTES = 60_000
_ADAPTER_PICKS = 20
_AT_ONCE = 20


async def prefill_and_decode(bench: Bench) -> None:
    answer = await bench.ask(bench.chat(filler_bytes=_LONG_PROMPT_BYTES))
    expect_within(answer.endpoints(), bench.endpoints)
    value = answer.header(PREFILLER)
    expect(value, f"no {PREFILLER} with a prompt of {_LONG_PROMPT_BYTES:,} bytes")
    assert value is not None
    expect_within([one.strip() for one in value.split(",")], bench.fixture.prefill)


async def short_prompt(bench: Bench) -> None:
    answer = await bench.ask(bench.chat("Hi"))
    answer.picked()
    expect(not answer.header(PREFILLER), f"{PREFILLER} is set for a prompt of two letters")


async def rank(bench: Bench) -> None:
    answer = await bench.ask(bench.chat())
    pick, value = answer.endpoints()[0], answer.header(DP_RANK_HOST)
    if value is None:
        raise CaseSkipped(f"the picker sets no {DP_RANK_HOST}")
    expect_within([value], bench.endpoints)
    expect(address_of(value) == address_of(pick), f"the rank {value} is not a server of {pick}")


async def adapter_alone(bench: Bench) -> None:
    for adapter, endpoint in bench.fixture.adapters.items():
        answers = await bench.spread(lambda name=adapter: bench.chat(body=chat(name)), _ADAPTER_PICKS)  # type: ignore[misc]
        used = {answer.endpoints()[0] for answer in answers}
        expect(used == {endpoint}, f"{adapter} is on {endpoint} alone, and requests went to {', '.join(sorted(used))}")


async def rewritten(bench: Bench) -> str:
    said = []
    for model, weights in bench.fixture.rewrites.items():
        drawn: Counter[str] = Counter()
        while drawn.total() < bench.effort.rewrites:
            count = min(_AT_ONCE, bench.effort.rewrites - drawn.total())
            answers = await bench.spread(lambda name=model: bench.chat(body=chat(name)), count)  # type: ignore[misc]
            drawn.update(map(_model_of, answers))
        expect(set(drawn) <= set(weights), f"{model} became {', '.join(sorted(set(drawn) - set(weights)))}")
        _expect_shares(drawn, weights)
        said += [f"{target} {count}" for target, count in sorted(drawn.items())]
    return ", ".join(said)


def _model_of(answer: PickerAnswer) -> str:
    answer.picked()
    body, said = answer.body(), answer.header("content-length")
    expect(said is None or said == str(len(body)), f"content-length {said}, body of {len(body)} bytes")
    try:
        return str(json.loads(body)["model"])
    except (ValueError, TypeError, KeyError):
        raise CaseFailed(f"no model in the body that came back: {body[:80]!r}") from None


def _expect_shares(drawn: Counter[str], weights: dict[str, int] | object) -> None:
    """Fail if a target is more than three standard deviations from its share."""
    assert isinstance(weights, dict)
    total, count = sum(weights.values()), drawn.total()
    for target, weight in weights.items():
        mean = count * weight / total
        deviation = math.sqrt(mean * (1 - weight / total))
        expect(abs(drawn[target] - mean) <= 3 * deviation, f"{target}: {drawn[target]} of {count}, expected {mean:.0f}")


async def only_if_warm(bench: Bench) -> None:
    request = bench.chat(headers=[(PREFER, "if-available")], filler_bytes=8_000)
    (await bench.ask(request)).refused(412)


async def scores(bench: Bench) -> str:
    answer = await bench.ask(bench.chat())
    answer.picked()
    value = answer.metadata(SCORES)
    if value is None:
        raise CaseSkipped("the picker sends no scores")
    expect(value.WhichOneof("kind") == "struct_value", f"{SCORES} is {value.WhichOneof('kind')}")
    fields = value.struct_value.fields
    expect_within(list(fields), bench.endpoints)
    kinds = {score.WhichOneof("kind") for score in fields.values()}
    expect(kinds == {"number_value"}, f"the scores are {', '.join(sorted(map(str, kinds)))}")
    return f"{len(fields)} scores"


_MUST, _SHOULD, _MAY = Requirement.MUST, Requirement.SHOULD, Requirement.MAY
_PD, _LLM_D = CaseProfile.PD, CaseProfile.LLM_D

GROUP = CaseGroup(
    "K",
    "Prefill and decode, adapters, rewrites",
    (
        ConformanceCase(
            91,
            "A long prompt gets a decode endpoint, and a prefill endpoint in a header.",
            "L",
            _MUST,
            _PD,
            prefill_and_decode,
            endpoints=1,
            given=(Given.PREFILL,),
        ),
        ConformanceCase(92, "A short prompt gets no prefill endpoint.", "L", _SHOULD, _PD, short_prompt),
        ConformanceCase(93, "A rank's server has the address of the pick.", "L", _MUST, _PD, rank, endpoints=1),
        ConformanceCase(
            94,
            "An adapter goes to the endpoint that has it.",
            "L",
            _SHOULD,
            _LLM_D,
            adapter_alone,
            endpoints=2,
            given=(Given.ADAPTER,),
        ),
        ConformanceCase(
            95,
            "A rewrite changes the body's model and its length, by the weights.",
            "L",
            _SHOULD,
            _LLM_D,
            rewritten,
            given=(Given.REWRITE,),
        ),
        ConformanceCase(96, "`Prefer: if-available` gets 412 for an unknown prompt.", "L", _MAY, _LLM_D, only_if_warm),
        ConformanceCase(97, "Scores are numbers by endpoint.", "L", _SHOULD, _LLM_D, scores, endpoints=1),
    ),
)
