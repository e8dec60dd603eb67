"""What another worker gets, and what is placed."""

import asyncio
import gc
import json
import tracemalloc
from array import array
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest

from policies.view import WorkerId
from router.gateway.layers.migration.continuation_body import ContinuationBody
from router.gateway.layers.migration.eligibility import fields_of
from router.gateway.layers.migration.leg_filter import LegFilter
from router.gateway.layers.migration.permits import Permits
from router.gateway.layers.migration.resumed_prompt import resumed_prompt
from router.gateway.layers.migration.resumed_stream import Death, LegAfterDeath, ResumedStream
from router.gateway.layers.migration.tracked_stream import TrackedStream
from router.gateway.layers.migration.whole_tokens import WholeTokens
from router.placement.decision_log.decisions import Seam
from router.placement.request import Request
from router.residency.prompt import Prompt, PromptSource
from router.tokenization.hashing import CacheKeys, chain_of
from router.tokenization.local.memo import packed_ids

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
IDS = array("I", [1, 2, 3, 4, 5])


def made(path, given=2, **members):
    body = msgspec.json.encode({"model": "m", "stream": True} | members)
    fields = fields_of(body)
    assert fields is not None
    kept = ContinuationBody(path, body, fields)
    return kept, json.loads(kept.of(IDS, given))


def test_a_chat_gets_the_ids_in_place_of_its_messages():
    _, body = made(CHAT, messages=[{"role": "user", "content": "x"}], seed=3, chat_template="y", temperature=0.25)
    assert body == {
        "model": "m", "stream": True, "seed": 3, "temperature": 0.25, "messages": [], "return_token_ids": True,
        "kv_transfer_params": {"prompt_token_ids": [1, 2, 3, 4, 5]},
    }  # fmt: skip


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "x" * 1_000}}


@pytest.mark.parametrize("calls", [0, 3])
def test_a_chat_with_tools_keeps_the_number_of_its_calls(calls):
    """Parsers number the calls of the answer after them."""
    messages = [{"role": "user", "content": "tool_calls"}]
    messages += [{"role": "assistant", "tool_calls": [CALL] * one} for one in (calls - 1, 1) if calls]
    _, body = made(CHAT, messages=messages, tools=[{"type": "function"}])
    assert sum(len(one["tool_calls"]) for one in body["messages"]) == calls
    assert {one["role"] for one in body["messages"]} <= {"assistant"}
    assert body["tools"] == [{"type": "function"}] and len(json.dumps(body)) < 1_000


def test_what_is_kept_is_one_piece_without_the_prompt():
    kept, _ = made(CHAT, messages=[{"role": "user", "content": "x" * 100_000}], max_tokens=9, min_tokens=1)
    assert kept.kept_bytes == len(b'{"model":"m","stream":true')


@pytest.fixture
def taken_bytes():
    """Call it for the memory that was taken since the beginning of the test, and is in use."""
    gc.collect()
    tracemalloc.start()
    yield lambda: (gc.collect() and None) or tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


def test_many_members_take_no_more_than_their_bytes(taken_bytes):
    kept = made(CHAT, **{f"x{number}": [number] for number in range(10_000)})[0]
    assert taken_bytes() < kept.kept_bytes + 40_000 < 200_000  # msgspec keeps names that it has seen


class Resumes:
    """A request whose answer goes on, as its legs see it."""

    def may_go_on(self):
        return True

    def settled(self, death):
        assert death.seam.outcome == "resumed"


def token(number):
    return b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null,"token_ids":[%d]}]}\n\n' % number


def test_a_stream_of_32k_ids_takes_200_kb_also_after_a_death(taken_bytes):
    """Its messages are forgotten. Nothing has the ids twice, once the next worker has returned them."""
    body = {"messages": [{"role": "user", "content": "x" * 400_000}], "tools": [{"type": "x" * 40_000}]}
    prompt, salt = list(range(60_000, 76_000)), None
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}],"prompt_token_ids":%b}\n\n'
    whole = WholeTokens()
    whole.learn(17_000)  # all streams of a model share them
    empty = taken_bytes()
    kept, stream = made(CHAT, **body)[0], TrackedStream(CHAT, 100_000, whole)
    leg = LegFilter(stream, None, lambda: True, holds=False)
    leg.feed(role % json.dumps(prompt).encode())
    for number in range(16_768):
        leg.feed(token(number))
    assert stream.kept_bytes == 4 * 32_768
    assert taken_bytes() - empty < 200_000
    request = resumed_prompt(request_of(chained(prompt)), stream.prompt, stream.output, stream.clean, 16, salt)
    death = Death("a", SimpleNamespace(add_seam=id), Seam("cut", "a", 0), 0.0)
    plan = ResumedStream(Resumes(), request, death, stream, kept, leg)
    assert len(request.prompt.chain(16)) == 2_048
    later = plan.own_body(None, 0.0).answer_filter
    plan.opened(None, 0.0)
    assert later.feed(role % json.dumps(stream.ids().tolist()).encode() + token(16_768)) and not later.broken
    del leg
    hashes_bytes = 2_048 * 8
    assert taken_bytes() - empty < 200_000 + hashes_bytes


def test_a_completion_gets_the_ids_as_its_prompt():
    _, body = made(TEXT, prompt="x")
    assert body["prompt"] == [1, 2, 3, 4, 5] and "kv_transfer_params" not in body


LIMITS = [
    (CHAT, {}, None, {}),
    (CHAT, {"max_tokens": None}, None, {"max_tokens": None}),
    (CHAT, {"max_tokens": 10}, 8, {"max_tokens": 8}),
    (CHAT, {"max_tokens": 10, "max_completion_tokens": 5}, 3, {"max_tokens": 10, "max_completion_tokens": 3}),
    (TEXT, {"prompt": "x"}, 14, {"max_tokens": 14}),
    (TEXT, {"prompt": "x", "max_tokens": "7"}, 5, {"max_tokens": 5}),
    (TEXT, {"prompt": "x", "max_tokens": 2}, 0, {"max_tokens": 0}),
]


@pytest.mark.parametrize(("path", "members", "left", "expected"), LIMITS)
def test_the_budget_is_what_is_left(path, members, left, expected):
    kept, body = made(path, **members)
    assert kept.budget(2) == left
    assert {name: body.get(name) for name in expected} == expected


@pytest.mark.parametrize(("least", "left"), [(1, 0), (2, 0), (5, 3)])
def test_least_tokens_are_what_is_left(least, left):
    assert made(CHAT, min_tokens=least)[1]["min_tokens"] == left


# what is placed


def request_of(prompt):
    return Request("r", CHAT, "m", prompt, 40, 0.0)


def chained(ids, adapter=None, salt=None):
    packed, keys = packed_ids(array("I", ids)), CacheKeys.of(adapter, salt)
    return Prompt(len(ids), PromptSource.RENDERED, lambda block: chain_of(packed, block, keys))


@pytest.mark.parametrize(("adapter", "salt"), [(None, None), (None, "s"), ("m", None), ("m", "s")])
def test_the_hashes_go_on_over_the_answer(adapter, salt):
    ids = list(range(40))
    output = array("I", [*ids[20:], 7, 7])
    placed = request_of(chained(ids[:20], adapter, salt))
    resumed = resumed_prompt(placed, array("I", ids[:20]), output, 20, 16, salt)
    output.append(8)  # the answer goes on
    assert resumed.prompt is not None
    assert list(resumed.prompt.chain(16)) == list(chained(ids, adapter, salt).chain(16))
    assert (resumed.prompt_tokens, resumed.prompt.tokens) == (40, 40)


def test_hashes_of_another_identity_stay():
    text = Prompt(20, PromptSource.TEXT, lambda block: [1])
    other = chained(range(100, 120))
    for prompt in (text, other, None):
        resumed = resumed_prompt(request_of(prompt), array("I", range(30)), array("I", range(10)), 10, 16, None)
        assert resumed.prompt is prompt and resumed.prompt_tokens == 40


# the turn


class Waiting:
    """Takes a permit when it is offered one, if it still wants it."""

    def __init__(self, permits, wants=True):
        self.permits, self.wants, self.has = permits, wants, False

    def offer(self):
        if self.wants and self.permits.free:
            self.has = True
            self.permits.take()

    def sent_to(self, worker: WorkerId | None):
        return False


async def test_the_oldest_is_next():
    permits = Permits(asyncio.get_running_loop(), lambda: 2)
    permits.take()
    permits.take()
    assert not permits.free
    young, old, gone = Waiting(permits), Waiting(permits), Waiting(permits, wants=False)
    permits.enter(young, 3.0)
    permits.enter(old, 2.0)
    permits.enter(gone, 1.0)
    permits.give_back()
    await asyncio.sleep(0)
    assert (old.has, young.has, permits.waiting, permits.used) == (True, False, 1, 2)
    permits.leave(young)
    permits.give_back()
    await asyncio.sleep(0)
    assert (permits.waiting, permits.used) == (0, 1)


def leg_with(permits, outcomes):
    of = SimpleNamespace(permits=permits, settled=lambda death: outcomes.append(death.seam.outcome))
    return LegAfterDeath(of, request_of(None), Death("w", Mock(), Seam("cut", "w", 0), 0.0))


async def test_an_answer_that_waits_in_another_queue_keeps_no_permit():
    permits, outcomes = Permits(asyncio.get_running_loop(), lambda: 1), []
    waits, other = leg_with(permits, outcomes), leg_with(permits, outcomes)
    assert waits.turn() is None, "it may look for a worker, and finds none that is free"
    assert other.turn() is None
    other.leg(Mock(), 0.0)
    assert waits.turn() is not None and permits.used == 1
    other.leg(Mock(), 0.0)  # again, after a failed attempt
    other.opened(None, 0.0)
    assert waits.turn() is None and permits.used == 0
    waits.leg(Mock(), 0.0)
    waits.client_left()
    waits.end(0.0)
    assert (permits.used, outcomes) == (0, ["left"])


async def test_one_is_let_through_while_no_worker_is_ready():
    permits = Permits(asyncio.get_running_loop(), lambda: 0)
    assert permits.free
    permits.take()
    assert not permits.free
