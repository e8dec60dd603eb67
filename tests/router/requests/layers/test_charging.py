"""The charge of a request to its caller's limits, by what its answer reports and what was sent of it."""

import pytest

from router.gateway.flow.answer.relay import _events, _frame_bytes
from router.placement.request import Request, Usage
from router.requests.layers.limits.charging import answer_tokens, left_tokens, text_tokens
from router.requests.routes import RouteTable

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = 40


def request(path=CHAT, **fields):
    return Request("x", path, "m", None, PROMPT, 0.0, **fields)


def complete(usage, text_bytes=0, reserved=0, path=CHAT, **fields):
    route = RouteTable().find(path)
    return answer_tokens(request(path, **fields), route, usage, PROMPT + reserved, text_bytes)


def left(text_bytes, path=CHAT, reserved=0, made=0, **fields):
    return left_tokens(request(path, **fields), RouteTable().find(path), PROMPT + reserved, text_bytes, made)


def test_reported_usage_is_the_charge_whatever_was_estimated_or_sent():
    assert complete(Usage(7, 3), text_bytes=90_000, reserved=5_000) == 10
    assert complete(Usage(None, 3), reserved=5_000) == PROMPT + 3


@pytest.mark.parametrize(
    ("reserved", "text_bytes", "max_tokens", "output"),
    [
        (500, 0, 500, 500),  # nothing visible: hidden reasoning may have used all of it
        (500, 400, 500, 500),
        (500, 80_000, 500, 500),  # the worker keeps to the limit; the rest are frames
        (120, 80_000, None, 20_000),  # a learned length is no limit
        (120, 100, None, 120),
        (0, 5, None, 2),
    ],
)
def test_output_that_is_not_reported_costs_the_estimate_and_no_less_than_its_text(
    reserved, text_bytes, max_tokens, output
):
    assert complete(Usage(), text_bytes, reserved, max_tokens=max_tokens) == PROMPT + output
    assert complete(Usage(9), text_bytes, reserved, max_tokens=max_tokens) == 9 + output


@pytest.mark.parametrize(
    ("text_bytes", "fields", "output"),
    [
        (0, {"max_tokens": 100_000}, 0),
        (2_000, {"max_tokens": 100_000}, 500),
        (2_000, {}, 500),
        (2_000, {"max_tokens": 100}, 100),
        (2_000, {"max_tokens": 100, "answers": 3}, 300),
        (2_000, {"max_tokens": -1}, 0),
        (2_000, {"max_tokens": 1, "path": COMPLETIONS}, 500),  # the limit holds for each of several prompts
        (2_000, {"max_tokens": 1, "path": "/v1/responses"}, 500),  # and for each turn
    ],
)
def test_an_answer_that_was_left_costs_its_prompt_and_its_text(text_bytes, fields, output):
    assert left(text_bytes, **fields) == PROMPT + output


@pytest.mark.parametrize(
    ("text_bytes", "made", "output"), [(0, 80, 80), (0, 900, 200), (400, 80, 100), (1_200, 900, 300)]
)
def test_an_answer_that_was_left_costs_what_was_probably_generated_up_to_the_estimate(text_bytes, made, output):
    assert left(text_bytes, reserved=200, made=made) == PROMPT + output


def test_a_stored_response_costs_its_output_when_it_is_read():
    path = "/v1/responses/resp_1"
    assert complete(Usage(9_000, 80), path=path) == 80
    assert complete(Usage(), 4_000, path=path) == 0  # it still runs
    assert left(4_000, path=path, made=9) == 1_000


def test_answers_without_generated_tokens_cost_their_prompt():
    assert complete(Usage(), 90_000, 5_000, path="/v1/embeddings") == PROMPT
    assert complete(Usage(9), 90_000, path="/pooling") == 9
    assert left(90_000, path="/v1/rerank") == PROMPT


def test_paths_that_run_no_model_cost_nothing():
    assert complete(Usage(9, 9), path="/tokenize") == left(90_000, path="/tokenize") == 0


def test_no_usage_gives_tokens_back():
    assert complete(Usage(-5, -5)) == 0
    assert complete(Usage(-5, 4)) == 4


def test_a_token_begins_with_its_first_byte():
    assert [text_tokens(size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_text_cannot_pass_for_events():
    assert _events(b'5\r\ndata: {"x":"data: data: \\n\\ndata: "}\n\n') == 1
    assert _events(b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n") == 2
    assert _events(b"data: [DONE]\n\n") == _events(b": comment\n\n") == 0


@pytest.mark.parametrize(
    ("first", "head"),
    [
        (b'data: {"id":"a","choices":[]}', 16),
        (b': comment\n\ndata: {"id":"a","choices":[]}', 16),
        (b'event: message_start\ndata: {"type":"message_start"}', 0),
        (b'data: {"pad":"' + b"x" * 600 + b'","choices":[]}', 0),  # no worker writes so much before the choices
        (b'"choices"', 0),
        (b"", 0),
    ],
)
def test_the_frame_of_an_event_is_what_no_text_can_take(first, head):
    assert _frame_bytes([first]) == 64 + head
