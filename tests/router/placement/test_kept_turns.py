"""A pair whose prefill worker reads the turn before costs what is left to compute, and the transfer."""

from array import array
from dataclasses import replace

import pytest

from backends.worker import ConnectorFacts
from policies.handover_cost import LEAST_READ_TOKENS
from router.placement.handover import PlannedHandover
from router.placement.kept_turns import GivenPrompt, KeptTurn, readable
from router.placement.lifecycle_events import Usage
from router.placement.links import Transfer
from router.tokenization.memo import packed_ids
from tests.router.placement.test_handover import ask, site  # noqa: F401 - fixtures

TURN, PROMPT = 9_000, 10_000


def given(tokens, first=0, model="m", salt=b"null"):
    return GivenPrompt(model, salt, packed_ids(array("I", range(first, first + tokens))))


def candidate(placed, port):
    return next(one for one in placed.fleet.candidates if one.id == f"h:{port}")


def kept(placed, port=3, tokens=TURN, end_s=60.0):
    return KeptTurn(given(tokens), tokens - 100, b"{}", candidate(placed, port), end_s)


@pytest.fixture
def placed(site, ask):  # noqa: F811
    """Return a fleet whose decode worker has streams, and the turn in its cache."""
    made = site({1: "prefill", 3: "decode"})
    made.stream(ask(first=500_000), 6)
    turn = made.dispatcher.dispatch(ask(TURN), 0.0)
    made.dispatcher.first_token(turn, 0.0)
    made.dispatcher.finished(turn, Usage(TURN, 1, 0), 0.0)
    return made


def plan(placed, request, *turns):
    return placed.dispatcher.plan_handover(request, 0.0, turns=turns)


def test_a_pair_that_is_too_dear_pays_if_its_prefill_worker_reads_the_turn(placed, ask):  # noqa: F811
    assert plan(placed, ask(PROMPT)) is None
    turn = kept(placed)
    planned = plan(placed, ask(PROMPT), turn)
    assert isinstance(planned, PlannedHandover)
    assert planned.turn is turn
    assert (planned.after.cached_tokens, planned.after.uncached_tokens) == (TURN, PROMPT - TURN)
    prefill, decode = placed.dispatcher.hand_over(ask(PROMPT), planned, 0.0)
    assert placed.load(1)["queued_tokens"] == PROMPT - TURN
    assert (prefill.candidate.id, decode.candidate.id) == ("h:1", "h:3")
    assert prefill.predicted_cached_tokens is None  # what it reports teaches nothing of its own cache
    assert prefill.moved_tokens == TURN  # so its time to the first token is no wait


def test_a_pair_behind_a_sidecar_is_priced_without_the_turn_that_it_does_not_read(placed, ask):  # noqa: F811
    placed.fleet.describe("h:3", {"kv_sidecar": "true"}, 1.0, None, "decode")
    assert plan(placed, ask(PROMPT), kept(placed)) is None


def test_a_large_fleet_is_compared_in_arrays(site, ask):  # noqa: F811
    placed = site(dict.fromkeys(range(100, 185), "prefill") | {3: "decode"})
    placed.stream(ask(first=500_000), 60)
    planned = plan(placed, ask(PROMPT), kept(placed))
    assert planned.turn is not None
    assert (planned.after.cached_tokens, planned.after.uncached_tokens) == (TURN, PROMPT - TURN)
    assert planned.after.prefill_s == pytest.approx(planned.prefill.fleet.prefill_s[0] * (PROMPT - TURN) / PROMPT)


def test_the_longest_turn_that_can_be_read_is_read(placed, ask):  # noqa: F811
    turns = [kept(placed, tokens=tokens) for tokens in (8_000, TURN, 8_500)]
    assert plan(placed, ask(PROMPT), *turns).turn is turns[1]
    turns[1].lost = True
    assert plan(placed, ask(PROMPT), *turns).turn is turns[2]


@pytest.mark.parametrize("why", ["lost", "expired", "short", "own", "mode", "slow"])
def test_a_turn_that_cannot_be_read_or_is_dear_changes_nothing(placed, ask, why):  # noqa: F811
    turn = kept(placed, port=1 if why == "own" else 3)
    if why == "lost":
        turn.lost = True
    elif why == "expired":
        turn.end_s = 1e-9
    elif why == "short":
        turn = kept(placed, tokens=LEAST_READ_TOKENS - 1)
    elif why == "mode":
        connector = ConnectorFacts(name="NixlConnector", bidirectional=False)
        for worker in ("h:1", "h:3"):
            placed.fleet.probe_succeeded(worker, replace(placed.facts(events=False), connector=connector), 0.0)
    elif why == "slow":
        slow = Transfer("handover", candidate(placed, 3), candidate(placed, 1), 1_000, 0.0, 0.0, 0.0)
        for _ in range(20):
            placed.dispatcher.transferred(slow, 100.0)
    assert plan(placed, ask(PROMPT), turn) is None


def test_a_worker_that_is_not_ready_or_of_another_format_is_not_read_from(placed):
    turn, reader = kept(placed), candidate(placed, 1)
    assert readable([turn], [reader], "m").tolist() == [[True]]
    other = replace(placed.facts(events=False), version="0.1.0")
    placed.fleet.probe_succeeded("h:3", other, 0.0)
    assert readable([turn], [reader], "m").tolist() == [[False]]
    placed.fleet.probe_succeeded("h:1", other, 0.0)
    assert readable([turn], [reader], "m").tolist() == [[True]]
    for _ in range(5):
        placed.fleet.probe_failed("h:3", "down", 1.0)
    assert readable([turn], [reader], "m").tolist() == [[False]]


def test_a_prompt_extends_a_turn_or_departs_from_its_answer():
    turn = KeptTurn(given(200), 120, b"", None, 1.0)
    assert given(201).extends(turn.prompt)
    assert not given(200).extends(turn.prompt)
    assert not given(201, salt=b'"s"').extends(turn.prompt)
    assert not given(201, model="n").extends(turn.prompt)
    departed = given(201)._replace(ids=given(120).ids + given(81, first=900).ids)
    assert not departed.extends(turn.prompt)
    assert departed.continues(turn)
    assert not given(120).continues(turn)
    assert not given(201, first=1).continues(turn)
