"""What passes of the answers of workers that go on, or begin again."""

import json
from array import array

import pytest

from router.gateway.layers.migration.later_leg import LaterLeg
from router.gateway.layers.migration.restarted_leg import RestartedLeg
from router.gateway.layers.migration.tracked_stream import TrackedStream
from router.gateway.layers.migration.whole_tokens import WholeTokens

IDS = [1, 2, 3]
DONE = b"data: [DONE]\n\n"


def data(**members):
    return b"data: " + json.dumps({"id": "b"} | members, separators=(",", ":")).encode() + b"\n\n"


def role(ids, **delta):
    return data(choices=[{"delta": {"role": "assistant", "content": ""} | delta}], prompt_token_ids=ids)


def text(content, ids=(4,), **members):
    return data(choices=[{"delta": {"content": content}, "token_ids": list(ids)}], **members)


def later(ids=IDS):
    stream = TrackedStream("/v1/chat/completions", 1_000, WholeTokens())
    stream.note(data(id="a", choices=[{"delta": {"role": "assistant", "content": ""}}], prompt_token_ids=ids[:2]))
    stream.note(text("x", ids[2:]))
    return LaterLeg(stream, None, lambda: False, array("I", ids), lambda: None, holds=False)


def restarted(beginning=b'data: {"id":"a"}\n\n'):
    return RestartedLeg(beginning, None, lambda: None)


ODD = [
    b'data: {"id":"b","choices":[{"delta":{"content":"y"},"token_ids":[4]}\n\n',
    b'data: {"choices":{"delta":{"content":"y"}}}\n\n',
    b'data: {"choices":[{"delta":"y","token_ids":[4]}]}\n\n',
    b'data: ["y"]\n\n',
    b"data: y\n\n",
    b'event: error\ndata: {"choices":\n\n',
    b'data: {"choices":[],"usage":[1]}\n\n',
]


@pytest.mark.parametrize(("leg", "event"), [*((later, one) for one in ODD), *((restarted, one) for one in ODD[:-1])])
def test_an_event_that_cannot_be_read_never_passes(leg, event):
    one = leg()
    assert b'"content":"y"' in one.feed(role(IDS) + text("y"))
    assert one.feed(event + text("z")) == b""
    assert one.broken == "unreadable"
    assert one.feed(text("z")) == one.rest() == b""


@pytest.mark.parametrize("leg", [later, restarted])
def test_neither_does_one_without_an_end(leg):
    one = leg()
    assert one.feed(role(IDS) + text("y"))
    assert one.feed(b'data: {"choices":[') == one.rest() == b""
    assert one.broken == "unreadable"


def test_nor_one_that_is_too_long(monkeypatch):
    monkeypatch.setattr(LaterLeg, "held_bytes", 100)
    one = later()
    assert one.feed(role(IDS))[:1] == b""
    assert one.feed(b'data: {"choices":[{"delta":{"content":"' + b"y" * 200) == b""
    assert one.broken == "unreadable"


def test_comments_and_the_end_pass():
    one = later()
    assert one.feed(b": c\n\n" + role(IDS) + text("y") + b": c\n\n" + DONE) == (
        text("y", id="a").replace(b"[4]", b"null") + b": c\n\n" + DONE
    )
    assert one.broken == ""


@pytest.mark.parametrize("wire", [DONE, role([1, 2]), role(None), text("y"), data(choices=[])])
def test_nothing_passes_before_the_ids(wire):
    one = later()
    assert one.feed(wire) == b"" and one.broken == "ids_ignored"


EMPTY = [{"content": None}, {}, {"reasoning_content": None, "tool_calls": []}]
FULL = [{"content": "y"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}]


@pytest.mark.parametrize("delta", [*EMPTY, *FULL], ids=str)
@pytest.mark.parametrize("leg", [later, restarted])
def test_the_role_is_taken_out_and_what_is_beside_it_stays(leg, delta):
    event = data(choices=[{"delta": {"role": "assistant"} | delta, "finish_reason": None}], prompt_token_ids=IDS)
    passed = leg().feed(event)
    assert b"role" not in passed
    assert (json.loads(passed[6:])["choices"][0]["delta"] == delta) if delta in FULL else passed == b""
