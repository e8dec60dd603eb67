import json
from array import array

import pytest

from router.gateway.layers.migration.eligibility import Ineligible
from router.gateway.layers.migration.leg_filter import MOST_HELD, LegFilter
from router.gateway.layers.migration.tracked_stream import TrackedStream
from router.gateway.layers.migration.whole_tokens import WholeTokens
from router.requests.outgoing import AnswerFilter

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def data(document):
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def role(ids=(1, 2)):
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return data({"id": "a", "choices": [choice], "prompt_token_ids": list(ids), "prompt_text": None})


def delta(ids, finish=None, **members):
    choice = {"index": 0, "delta": members, "logprobs": None, "finish_reason": finish, "token_ids": list(ids)}
    return data({"id": "a", "choices": [choice]})


def tracked(*events, path=CHAT, **options):
    stream = TrackedStream(
        path, options.pop("max_tokens", 1_000), options.pop("whole", None) or WholeTokens(), **options
    )
    shown = [stream.note(event) for event in events]
    return stream, shown


def test_ids_are_kept_and_hidden():
    whole = WholeTokens()
    whole.learn(5)
    stream, shown = tracked(role(), delta([3], content="a"), delta([4, 5], content="b"), whole=whole)
    assert stream.ids() == array("I", [1, 2, 3, 4, 5])
    assert b'"prompt_token_ids":null' in shown[0] and b'"token_ids":null' in shown[1]
    assert shown[2] == delta([4, 5], content="b").replace(b"[4,5]", b"null")


def test_ids_that_the_client_asked_for_stay():
    stream, shown = tracked(role(), delta([3], content="a"), hides=False)
    assert shown == [role(), delta([3], content="a")]
    assert stream.ids() == array("I", [1, 2, 3])


def test_the_seam_is_after_the_last_text():
    stream, _ = tracked(role(), delta([3], content="a"), delta([4]), delta([5], content=""))
    assert stream.ids() == array("I", [1, 2, 3])
    assert stream.refusal is None and list(stream.output) == [3, 4, 5]
    stream.cut()
    assert list(stream.output) == [3]


def test_several_tokens_end_clean_only_if_the_last_is_known_to_be_whole():
    whole = WholeTokens()
    stream, _ = tracked(role(), delta([3], content="a"), delta([4, 5], content="b"), whole=whole)
    assert stream.unclear and not stream.shown
    stream.note(delta([6], content="c"))
    assert (stream.clean, stream.unclear) == (4, False)
    assert 3 in whole and 6 not in whole  # 6 may have completed a character
    stream.note(delta([7, 3], content="d"))
    assert (stream.clean, stream.shown) == (6, True)


def test_text_whose_end_is_not_known_waits_for_the_next_end():
    one = leg()
    one.feed(role() + delta([3], content="a"))
    assert one.feed(delta([4, 5], content="b")) == b""
    assert one.feed(delta([6])) == b""
    assert one.feed(delta([7], content="c")).count(b"data: ") == 3
    assert one.feed(delta([8, 9], content="d")) == b""
    assert one.rest().count(b"data: ") == 1


def test_text_does_not_wait_for_ever():
    one = leg()
    one.feed(role())
    shown = [one.feed(delta([4, 5], content="b")).count(b"data: ") for _ in range(20)]
    assert shown == [0] * (MOST_HELD - 1) + [MOST_HELD] + [1] * (20 - MOST_HELD)
    assert one.stream.refusal is Ineligible.SEAM


def test_whole_tokens_have_a_bound():
    whole = WholeTokens()
    for token in (0, 5, 200_000, 1_048_575, 1_048_576, 4_000_000_000):
        whole.learn(token)
    assert [token in whole for token in (0, 5, 6, 200_000, 1_048_575, 1_048_576, 4_000_000_000)] == [
        True, True, False, True, True, False, False,
    ]  # fmt: skip


def test_spaces_and_text_that_looks_like_members_do_not_matter():
    odd = json.dumps({"choices": [{"delta": {"content": '"token_ids":[9],"finish_reason":"stop"'}, "token_ids": [3]}]})
    stream, _ = tracked(role(), b"data: " + odd.encode() + b"\n\n")
    assert stream.ids() == array("I", [1, 2, 3])
    assert not stream.finished


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_seam_within_reasoning_is_refused_until_content_follows(name):
    stream, _ = tracked(role(), delta([3], **{name: "hm"}), delta([4], **{name: "m"}))
    assert stream.refusal is Ineligible.REASONING
    stream.note(delta([5], content="so"))
    assert stream.refusal is None
    assert stream.reasoning_tokens == 2


def test_a_tool_call_that_has_begun_is_refused():
    call = [{"index": 0, "function": {"name": "f", "arguments": ""}}]
    stream, _ = tracked(role(), delta([3], content="a"), delta([4], tool_calls=call))
    assert stream.refusal is Ineligible.TOOL_CALL
    stream.note(delta([5], content="a"))
    assert stream.refusal is Ineligible.TOOL_CALL


def test_an_answer_with_its_finish_reason_is_complete():
    stream, _ = tracked(role(), delta([3], "stop", content="a"))
    assert stream.refusal is Ineligible.FINISHED


def test_without_ids_nothing_can_go_on():
    assert tracked()[0].refusal is Ineligible.NO_IDS
    assert tracked(delta([3], content="a"))[0].refusal is Ineligible.NO_IDS
    plain = data({"choices": [{"delta": {"content": "a"}, "finish_reason": None, "token_ids": None}]})
    assert tracked(role(), plain)[0].refusal is Ineligible.NO_IDS


@pytest.mark.parametrize("ids", ["-1", "4294967296", "1,,2"])
def test_ids_that_are_none_end_the_tracking(ids):
    event = b'data: {"choices":[{"delta":{"content":"a"},"token_ids":[%b]}]}\n\n' % ids.encode()
    stream, _ = tracked(role(), event)
    assert stream.refusal is Ineligible.NO_IDS


def test_a_long_stream_is_not_kept_but_its_ids_stay_hidden():
    stream, shown = tracked(role(), delta([3], content="a"), delta([4], content="b"), max_tokens=3)
    assert stream.refusal is Ineligible.LENGTH
    assert (stream.prompt, len(stream.output)) == (None, 0)
    assert b"null" in shown[2] and b"[4]" not in shown[2]
    assert tracked(role(range(9)), max_tokens=3)[0].refusal is Ineligible.LENGTH


def test_a_completion_gives_its_prompt_with_its_first_text():
    first = {"text": "a", "finish_reason": None, "prompt_token_ids": [1, 2], "token_ids": [3]}
    more = {"text": "ü", "finish_reason": None, "prompt_token_ids": None, "token_ids": [4]}
    stream, shown = tracked(data({"choices": [first]}), data({"choices": [more]}), path=TEXT, counts=True)
    assert stream.ids() == array("I", [1, 2, 3, 4])
    assert stream.text_length == 2
    assert b'"prompt_token_ids":null,"token_ids":null' in shown[0]


USUAL = [delta([token], content="b") for token in range(10, 14)]
ODD = [
    delta([4], content=""),
    delta([4, 5], content="b"),
    delta([], content="b"),
    delta([4], content="b", tool_calls=[{"index": 0}]),
    delta([4], content="b", reasoning="c"),
    delta([4], "stop", content="b"),
    delta([4], content='"}', refusal=None),
    delta([4], content='say "x"\\'),
    data({"id": "a", "choices": [], "usage": {"completion_tokens": 1}}),
    USUAL[0] + USUAL[1],
    USUAL[0].replace(b"10", b"99999999999"),
    USUAL[0].replace(b"10", b"x"),
    USUAL[0][:-1],
]


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("odd", ODD)
def test_usual_events_are_noted_quickly_and_alike(odd, hides):
    """A stream that is asked for the quick way first is as one that is not."""
    streams = [TrackedStream(CHAT, 1_000, WholeTokens(), hides=hides) for _ in range(2)]
    legs, passed = [LegFilter(stream, None, lambda: True, holds=False) for stream in streams], []
    for event in (role(), *USUAL, odd, *USUAL):
        quick = legs[0].quick(event)
        passed.append(quick is not None)
        assert (legs[0].feed(event) if quick is None else quick) == legs[1].feed(event)
    assert sum(passed[2:5]) == 3
    names = ("clean", "output", "prompt", "inside", "lost", "finished", "unclear")
    assert [getattr(streams[0], name) for name in names] == [getattr(streams[1], name) for name in names]


class Upper(AnswerFilter):
    def _suspicious(self, content):
        return True

    def _judged(self, event):
        return event.upper()


def leg(may_go_on=True, inner=None, holds=False):
    stream = TrackedStream(CHAT, 1_000, WholeTokens())
    return LegFilter(stream, inner, lambda: may_go_on, holds=holds)


def test_events_in_any_pieces_are_noted_once():
    wire = role() + delta([3], content="a") + delta([4], content="b") + b"data: [DONE]\n\n"
    for size in (1, 7, 50, len(wire)):
        one = leg()
        out = b"".join(one.feed(wire[at : at + size]) for at in range(0, len(wire), size)) + one.rest()
        assert one.stream.ids() == array("I", [1, 2, 3, 4])
        assert out.endswith(b"data: [DONE]\n\n") and b"[3]" not in out


def test_another_filter_gets_what_passes():
    inner = Upper()
    one = leg(inner=inner)
    assert b'"ID":"A"' in one.feed(delta([3], content="a"))
    assert one.has(inner) and one.has(one) and not one.has(None)
    assert not one.keeps_ending and leg().keeps_ending


ABORT = delta([], "abort", content="")
ERROR = data({"error": {"message": "died", "code": 500}})


@pytest.mark.parametrize(("event", "why"), [(ABORT, "abort"), (ERROR, "error_event")])
def test_a_death_is_held_back_while_the_answer_can_go_on(event, why):
    one = leg()
    one.feed(role() + delta([3], content="a"))
    assert one.feed(event + b"data: [DONE]\n\n") == b""
    assert one.broken == why
    assert one.feed(delta([4], content="x")) == b"" == one.rest()


def test_a_death_passes_where_the_answer_cannot_go_on():
    one = leg(may_go_on=False)
    assert one.feed(ERROR) == ERROR
    assert one.broken == ""


def test_tokens_without_text_wait_for_text_if_the_client_sees_more_than_text():
    one = leg(holds=True)
    one.feed(role())
    assert one.feed(delta([3])) == b""
    assert one.feed(delta([4], content="a")).count(b"data: ") == 2
    assert one.feed(delta([5])) == b""
    assert one.feed(delta([6], "stop")).count(b"data: ") == 2
