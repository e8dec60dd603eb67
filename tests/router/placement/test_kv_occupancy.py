import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement import kv_occupancy
from router.placement.kv_occupancy import IdleContext, Share, SharedContext, kv_wait_s

BLOCK = 16

PROMPTS = st.lists(st.integers(0, 2), max_size=6).map(
    lambda path: [hash(tuple(path[: i + 1])) for i in range(len(path))]
)
"""Chains of hashes, as of prompts that often have the same first blocks."""


def held_blocks(running):
    return len({block for share in running for block in share.hashes})


@given(st.lists(st.tuples(PROMPTS, st.integers(0, 99), st.booleans()), max_size=40))
def test_every_held_block_counts_once(steps):
    context, running = SharedContext(), []
    for hashes, place, ends in steps:
        if ends and running:
            context.remove(running.pop(place % len(running)))
        else:
            running.append(Share(hashes, BLOCK))
            context.add(running[-1])
        total = sum(len(share.hashes) for share in running)
        assert total * BLOCK - context.shared_tokens == held_blocks(running) * BLOCK
    for share in running:
        context.remove(share)
    assert context.shared_tokens == 0


def test_a_prompt_without_identity_shares_nothing():
    context, share = SharedContext(), Share((), 0)
    context.add(share)
    assert context.shared_tokens == 0
    context.remove(share)
    assert context.shared_tokens == 0


@given(st.lists(st.tuples(PROMPTS, st.integers(0, 99), st.sampled_from(["comes", "leaves", "rests"])), max_size=40))
def test_idle_context_counts_once_and_apart_from_running_context(steps):
    context, shared_context, running, idle_context = IdleContext(), SharedContext(), [], []
    for now_s, (hashes, place, step) in enumerate(steps):
        if step == "comes" or not running:
            running.append((Share(hashes, BLOCK), Share(hashes, BLOCK)))
            shared_context.add(running[-1][0])
            context.add(running[-1][1])
        else:
            own, kept = running.pop(place % len(running))
            shared_context.remove(own)
            if step == "leaves":
                context.remove(kept)
            else:
                context.rest(kept, now_s, now_s + 3.5)
                idle_context.append((now_s + 3.5, kept))
        idle_context = [(until_s, kept) for until_s, kept in idle_context if until_s > now_s]
        runs = [own for own, _ in running]
        besides = held_blocks(runs + [kept for _, kept in idle_context]) - held_blocks(runs)
        assert context.tokens(now_s, shared_context.shared_tokens) == besides * BLOCK
    assert context.tokens(len(steps) + 4.0, shared_context.shared_tokens) == 0


def test_the_number_of_idle_contexts_is_bounded(monkeypatch):
    monkeypatch.setattr(kv_occupancy, "IDLE_KEPT", 2)
    context = IdleContext()
    for number in range(3):
        share = Share([number], BLOCK)
        context.add(share)
        context.rest(share, 0.0, 9.0 - number)
    assert context.tokens(0.0, 0) == 2 * BLOCK
    assert [context.common_tokens([number], BLOCK) for number in range(3)] == [BLOCK, BLOCK, 0], (
        "the shortest time left"
    )
    assert context.common_tokens((), BLOCK) == 0


def test_a_prompt_that_fits_does_not_wait():
    assert kv_wait_s(400, 600, 3, 1_000, 5.0) == 0.0


def test_a_prompt_that_does_not_fit_waits_at_least_for_the_first_end():
    assert kv_wait_s(410, 600, 3, 1_000, 6.0) == pytest.approx(2.0)
    assert kv_wait_s(700, 600, 3, 1_000, 6.0) == pytest.approx(3.0)


def test_waiting_requests_go_first_and_fill_at_most_the_capacity():
    assert kv_wait_s(400, 1_000, 5, 1_000, 6.0) == pytest.approx(2.4)
    assert kv_wait_s(400, 3_000, 15, 1_000, 6.0) == pytest.approx(14.4)


@pytest.mark.parametrize(
    ("held", "requests", "capacity", "remaining_s"), [(0, 0, 100, 5.0), (500, 2, 0, 5.0), (500, 2, 100, 0.0)]
)
def test_the_kv_wait_is_zero_where_a_quantity_is_unknown(held, requests, capacity, remaining_s):
    assert kv_wait_s(400, held, requests, capacity, remaining_s) == 0.0
