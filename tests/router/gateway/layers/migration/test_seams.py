"""A seam at any event of any answer, without sockets: the filters of two legs together make one stream."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from router.gateway.layers.migration.continuation_body import ContinuationBody
from router.gateway.layers.migration.eligibility import fields_of
from router.gateway.layers.migration.later_leg import LaterLeg
from router.gateway.layers.migration.leg_filter import LegFilter
from router.gateway.layers.migration.tracked_stream import TrackedStream
from router.gateway.layers.migration.whole_tokens import WholeTokens
from tests.support.examples import examples
from tests.support.token_worker import PROMPT, Answering, TokenWorker

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
STEPS = st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple)


def events_of(worker, body, chat):
    return list(Answering(worker, body, chat).events())


def in_pieces(answer_filter, events, size):
    """Return what passes of pieces of that size, or of whole events, as the relay feeds them."""
    wire = b"".join(events)
    pieces = [wire[at : at + size] for at in range(0, len(wire), size)] if size else events
    out = [answer_filter.feed(one) if (quick := answer_filter.quick(one)) is None else quick for one in pieces]
    return b"".join(out)


def text_of(wire):
    events = [json.loads(line[6:]) for line in wire.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices), events


@given(
    answer=st.text(st.sampled_from('ab ü河🚀é日"\\\n'), min_size=1, max_size=20),
    steps=st.tuples(STEPS, STEPS),
    chat=st.booleans(),
    asks=st.booleans(),
    cut=st.integers(0, 60),
    size=st.one_of(st.just(0), st.integers(1, 400)),
    known=st.sets(st.sampled_from(list(b"ab "))),
    beside=st.tuples(st.booleans(), st.booleans()),
)
@settings(max_examples=examples(300), deadline=None)
def test_two_legs_make_the_answer_of_one(answer, steps, chat, asks, cut, size, known, beside):
    path, whole = CHAT if chat else TEXT, WholeTokens()
    for token in known:
        whole.learn(token)
    body = {"model": "m", "stream": True, "max_tokens": 200, "return_token_ids": asks}
    body |= {"messages": []} if chat else {"prompt": PROMPT}
    stream = TrackedStream(path, 1_000, whole, hides=not asks)
    one, other = [
        TokenWorker(answer, per_event=step, name=name, role_beside=role)
        for step, name, role in zip(steps, ("w", "other"), beside, strict=True)
    ]
    events = events_of(one, body | {"return_token_ids": True}, chat)
    first = LegFilter(stream, None, lambda: True, holds=asks)
    shown = in_pieces(first, events[:cut], size)
    if stream.refusal is None:
        stream.cut()
        ids = stream.ids()
        raw = msgspec.json.encode(body)
        rest = json.loads(ContinuationBody(path, raw, fields_of(raw)).of(ids, len(stream.output)))
        called = []
        later = LaterLeg(stream, None, lambda: False, ids, lambda: called.append(1), holds=asks)
        shown += in_pieces(later, events_of(other, rest, chat), size) + later.rest()
        assert (later.broken, called) == ("", [1])
        text, seen = text_of(shown)
        assert text == answer
        assert {event["id"] for event in seen} == {"cmpl-w"}
        finishes = [event["choices"][0]["finish_reason"] for event in seen if event["choices"]]
        assert [reason for reason in finishes if reason] == ["stop"]
        ids = [one for event in seen for one in event["choices"][0].get("token_ids") or []]
        assert ids == (list(answer.encode()) if asks else [])
        assert b"SECRET" not in shown
        assert shown.count(b'"role"') == chat
    else:
        assert answer.startswith(text_of(shown)[0])
