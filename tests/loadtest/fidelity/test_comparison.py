import dataclasses
from array import array

import msgspec
import pytest

from backends.engine.chain import BlockHasher
from loadtest.fidelity.comparison import Comparison, cached_tokens, quantiles
from loadtest.fidelity.differences import Cause, Difference, differences
from loadtest.fidelity.outcome import BlockHistory, Outcome, Played
from loadtest.fidelity.report import write_json

PROMPT = list(range(64))


def outcome(name="a", cached=32, arrived_s=1.0, first_s=1.5, last_s=2.5, output=11):
    return Outcome(name, len(PROMPT), cached, output, arrived_s, first_s, last_s)


def hashes():
    found = []
    BlockHasher(16, None, None).extend(found, array("I", PROMPT))
    return found


def played(cached, *changes):
    history = BlockHistory()
    for block, at_s, change in changes:
        (history.stored if change > 0 else history.removed)(hashes()[block], at_s)
    return Played((outcome(cached=cached),), history, 0)


HELD = (0, 0.1, 1), (1, 0.1, 1)


@pytest.mark.parametrize(
    ("missed", "cause"),
    [
        ((*HELD, (1, 0.5, -1), (1, 1.5, 1)), Cause.EVICTED),
        ((*HELD, (1, 1.2, -1), (1, 1.5, 1)), Cause.EVICTED),
        (((0, 0.1, 1), (1, 1.5, 1)), Cause.NOT_YET_COMPUTED),
        (((0, 0.1, 1), (1, 1.3, 1)), Cause.NOT_YET_COMPUTED),
        (HELD, Cause.OTHER),
        ((*HELD, (1, 0.2, 1), (1, 1.2, -1)), Cause.OTHER),
        ((*HELD, (1, 0.3, -1), (1, 0.6, 1)), Cause.OTHER),
        ((*HELD, (1, 1.6, -1)), Cause.OTHER),
    ],
)
@pytest.mark.parametrize("model_missed", [True, False])
def test_the_cause_is_read_from_the_side_that_missed(missed, cause, model_missed):
    sides = [played(16, *missed), played(32, *HELD)]
    ours, theirs = sides if model_missed else sides[::-1]
    [found] = differences(ours, theirs, {"a": PROMPT}, 16)
    assert (found.cause, {found.modelled, found.served}) == (cause, {16, 32})


def test_equal_cached_tokens_are_no_difference():
    assert differences(played(32), played(32), {"a": PROMPT}, 16) == []


def test_quantiles_take_the_front_end_off_the_reference_alone():
    reference = [outcome(first_s=1.0 + ttft_s, last_s=3.0 + ttft_s) for ttft_s in (0.1, 0.2, 0.3)]
    ours = [outcome(first_s=1.15)]
    ttft, _, tpot, _ = quantiles(reference, ours, less_s=0.05)
    assert (ttft.reference_ms, ttft.modelled_ms) == pytest.approx((150.0, 150.0))
    assert (ttft.error, ttft.within_bar) == (pytest.approx(0.0), True)
    assert (tpot.reference_ms, tpot.modelled_ms) == pytest.approx((200.0, 135.0))
    assert not tpot.within_bar


def test_a_single_token_has_no_time_per_token():
    assert outcome(output=1).tpot_s is None
    assert quantiles([outcome(output=1)], [outcome(output=1)])[2].reference_ms == 0.0


def compared(ours, theirs, found=(), **fields):
    times = quantiles(theirs.outcomes, ours.outcomes)
    counts = {"preemptions": (0, 0), "evictions": (0, 0), "one_at_a_time": False, **fields}
    cached = cached_tokens(ours, theirs, found)
    return Comparison(scenario="x", async_scheduling=True, cached=cached, times=times, raw_times=times, **counts)


def test_agreement_misses_no_bar():
    assert compared(played(32), played(32), one_at_a_time=True).failures == []


@pytest.mark.parametrize(
    ("cached", "cause", "alone", "words"),
    [
        (48, Cause.EVICTED, False, "off by -33.3%"),
        (32, Cause.OTHER, False, "without a known cause"),
        (32, Cause.EVICTED, True, "differ for 1 of 1"),
    ],
)
def test_a_missed_limit_is_reported(cached, cause, alone, words):
    found = [Difference("a", 32, cached, cause)]
    assert any(words in line for line in compared(played(32), played(cached), found, one_at_a_time=alone).failures)


def test_late_tokens_miss_the_bar():
    slow = dataclasses.replace(played(32), outcomes=(outcome(last_s=2.7),))
    assert compared(played(32), slow).failures == ["TPOT p50 is off by -16.7%", "TPOT p90 is off by -16.7%"]


def test_a_comparison_can_be_written_as_json(tmp_path):
    path = tmp_path / "fidelity.json"
    write_json(path, [compared(played(16), played(32), [Difference("a", 16, 32, Cause.EVICTED)])], [])
    (row,) = msgspec.json.decode(path.read_bytes())["served"]
    assert row["cached"]["differences"][0]["cause"] == "evicted by then on one side"
    assert row["failures"] == ["the sum of cached tokens is off by -50.0%"]
