"""The registry of running requests against the sets of blocks that a naive model holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement.load import running
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation, RunningRequests

BLOCK = 16

PROMPTS = st.lists(st.integers(0, 2), max_size=6).map(
    lambda path: [hash(tuple(path[: end + 1])) for end in range(len(path))]
)
"""Chains of hashes, as of prompts that often have the same first blocks."""
STEPS = st.lists(st.tuples(PROMPTS, st.integers(0, 99), st.sampled_from(["comes", "leaves", "rests"])), max_size=40)


def request(*hashes):
    return LoadReservation(len(hashes) * BLOCK, len(hashes) * BLOCK, 0.0, hashes=hashes, block_tokens=BLOCK)


def held_blocks(requests):
    return {block for one in requests for block in one.hashes}


def common_blocks(hashes, blocks):
    return next((end for end, block in enumerate(hashes) if block not in blocks), len(hashes))


@given(STEPS, PROMPTS)
def test_running_and_idle_blocks_count_once(steps, other):
    requests, runs, idle = RunningRequests(), [], []
    for now_s, (hashes, place, step) in enumerate(steps):
        if step == "comes" or not runs:
            runs.append(request(*hashes))
            requests.add(runs[-1])
        else:
            ended = runs.pop(place % len(runs))
            requests.end(ended, now_s, 3.5 if step == "rests" else 0.0)
            if step == "rests":
                idle.append((now_s + 3.5, ended))
        idle = [(until_s, one) for until_s, one in idle if until_s > now_s]
        here, beside = held_blocks(runs), held_blocks([one for _, one in idle])
        assert requests.idle_tokens(now_s) == len(beside - here) * BLOCK
        assert sum(len(one.hashes) for one in runs) * BLOCK - requests.shared_tokens == len(here) * BLOCK
        assert requests.common_tokens(other, BLOCK) == common_blocks(other, here | beside) * BLOCK
        for blocks in range(len(other) + 2):
            alike = [one for one in runs if blocks and list(one.hashes[:blocks]) == other[:blocks]]
            assert requests.alike(other, blocks) == (len(alike) if blocks <= len(other) else 0)
    assert requests.idle_tokens(len(steps) + 4.0) == 0
    for one in runs:
        requests.end(one, 0.0)
    assert requests.shared_tokens == 0


def test_a_prompt_without_identity_shares_nothing():
    requests, one = RunningRequests(), request()
    requests.add(one)
    assert (requests.shared_tokens, requests.alike((), 0), requests.common_tokens((), BLOCK)) == (0, 0, 0)
    requests.end(one, 0.0, 5.0)
    assert requests.idle_tokens(1.0) == 0


def test_the_number_of_idle_contexts_is_bounded(monkeypatch):
    monkeypatch.setattr(running, "IDLE_KEPT", 2)
    requests = RunningRequests()
    for number in range(3):
        one = request(number)
        requests.add(one)
        requests.end(one, 0.0, 9.0 - number)
    assert requests.idle_tokens(0.0) == 2 * BLOCK
    assert [requests.common_tokens([number], BLOCK) for number in range(3)] == [BLOCK, BLOCK, 0], (
        "the shortest time left"
    )
    assert requests.next_expiry_s == 8.0


def test_the_share_counts_running_requests_without_identity_and_no_idle_ones():
    account = LoadAccount()
    assert account.running_share((5,), 1) == 0.0
    one, two, three = request(5, 6, 7), request(5, 6), request(8)
    for reservation in (one, two, three, request()):
        account.reserve(reservation)
    assert [account.running_share((5, 6, 7), blocks) for blocks in (1, 2, 3, 4)] == [0.5, 0.5, 0.25, 0.0]
    assert account.running_share((9,), 1) == 0.0
    account.release(one, 1.0, idle_s=9.0)
    account.release(one, 1.0)
    assert account.running_share((5, 6, 7), 2) == pytest.approx(1 / 3)
