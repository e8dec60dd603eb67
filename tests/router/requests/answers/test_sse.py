import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement.request import Usage
from router.requests.answers.sse import FIRST_EVENT_BYTES, INTRODUCTION_BYTES, FirstEvent, StreamError
from router.requests.answers.usage import find_usage, trim

ERROR = b'data: {"error":{"message":"boom","code":500}}\n\n'
ANTHROPIC_ERROR = b'event: error\ndata: {"type":"error","error":{"type":"%s","message":"boom"}}\n\n'
CREATED = b'event: response.created\ndata: {"response":{}}\n\n'


@pytest.mark.parametrize(
    ("raw", "verdict"),
    [
        (b"", False),
        (b": hi\n\n", False),
        (b": hi\r\n\r\n: ho\r\n\r\n", False),
        (b"\n\n\n", False),
        (b"id: 3\nretry: 4\n\n", False),
        (b'data: {"choices":[]}\n', False),
        (b'data: {"choices":[]}\n\n', True),
        (b'data:{"choices":[]}\r\n\r\n', True),
        (b'data:{"choices":[]}\r\r', True),
        (b"data: [DONE]\n\n", True),
        (CREATED, False),
        (CREATED + CREATED.replace(b"created", b"in_progress"), False),
        (CREATED + b"event: response.output_item.added\ndata: {}\n\n", False),
        (CREATED + b"event: response.output_text.delta\ndata: {}\n\n", True),
        (CREATED + b'event: error\ndata: {"error":{"message":"boom","code":500}}\n\n', StreamError(500, "boom")),
        (CREATED.replace(b"{}", b"{" + b" " * FIRST_EVENT_BYTES), False),
        (CREATED.replace(b"{}", b"{" + b" " * INTRODUCTION_BYTES), False),
        (CREATED[:-2].replace(b"{}", b"{" + b" " * INTRODUCTION_BYTES), True),
        (b'event: message_start\ndata: {"type":"message_start"}\n\n', False),
        (b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n', True),
        (ANTHROPIC_ERROR % b"overloaded_error", StreamError(503, "boom")),
        (ANTHROPIC_ERROR % b"api_error", StreamError(0, "boom")),
        (ANTHROPIC_ERROR % b"not_found_error", StreamError(404, "boom")),
        (b"event: ping\ndata: {}\n\n", False),
        (b'data: {"error":null}\n\n', True),
        (b'data: {"error":{"message":"no","code":404}}\n\n', StreamError(404, "no")),
        (b'data: {"choices":[{"text":"{\\"error\\":1}"}]}\n\n', True),
        (b"data: \xff\xfe\n\n", True),
        (ERROR, StreamError(500, "boom")),
        (b": hi\n\n" + ERROR, StreamError(500, "boom")),
        (b'data: {"error":\ndata: {"message":"boom","code":"500"}}\n\n', StreamError(0, "boom")),
        (b'data: {"error":"Unauthorized"}\n\n', StreamError(0, "Unauthorized")),
        (b'data: {"error":{"message":"slow","code":429}}\n\n', StreamError(429, "slow")),
        (b'data: {"error":{"message":"busy","code":503}}\n\n', StreamError(503, "busy")),
        (b'data: {"object":"error","message":"old","code":500}\n\n', StreamError(500, "old")),
        (b"event: error\ndata: plain text\n\n", StreamError(0, "plain text")),
        (b'event: error\ndata: {"type":"error","message":"m"}\n\n', StreamError(0, "m")),
        (b"data: " + b"x" * FIRST_EVENT_BYTES, True),
    ],
)
def test_an_event_is_judged_by_its_fields(raw, verdict):
    assert FirstEvent().feed(raw) == verdict


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    ("raw", "preamble"),
    [
        (b": hi\n\n", False),
        (CREATED, False),
        (CREATED + b"event: response.output_item.added\ndata: {}\n\n", True),
        (CREATED + b"event: response.content_part.added\ndata: {}\n\n", True),
        (b'event: message_start\ndata: {"type":"message_start"}\n\n', True),
        (b"event: ping\ndata: {}\n\n", True),
        (ROLE, True),
        (ROLE.replace(b'":"', b'": "'), True),
        (ROLE[:-2], False),
    ],
)
def test_events_just_before_the_first_content_are_a_preamble(raw, preamble):
    first = FirstEvent()
    assert first.feed(raw) is False
    assert first.preamble is preamble
    assert first.feed(b"\n\ndata: x\n\n") is True


@pytest.mark.parametrize(
    "raw",
    [
        ROLE.replace(b'""', b'"a"'),
        ROLE.replace(b"null", b'"stop"'),
        ROLE.replace(b'"role":"assistant",', b""),
    ],
)
def test_an_event_with_content_or_an_end_is_no_preamble(raw):
    assert FirstEvent().feed(raw) is True


@given(st.lists(st.sampled_from([b": c\n\n", b"id: 1\n\n"]), max_size=4), st.booleans(), st.lists(st.integers(1, 9)))
def test_the_first_event_is_found_in_any_pieces(comments, real, cuts):
    raw = b"".join(comments) + (b'data: {"a":1}\n\n' if real else ERROR)
    first, start = FirstEvent(), 0
    for cut in cuts:
        if start + cut < len(raw):
            assert first.feed(raw[start : start + cut]) is False
            start += cut
    assert first.feed(raw[start:]) == (True if real else StreamError(500, "boom"))


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b"", Usage()),
        (b'{"usage":null}', Usage()),
        (b'{"usage":{"prompt_tokens":3}}', Usage(3)),
        (b'{"usage" : {"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}', Usage(3, 4)),
        (b'"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}},"x":{}}', Usage(3, None, 2)),
        (b'"usage":{"prompt_tokens":3,"prompt_tokens_details":null}', Usage(3)),
        (b'"usage":{"input_tokens":3,"output_tokens":1,"input_tokens_details":{"cached_tokens":2}}', Usage(3, 1, 2)),
        (b'"usage":{"input_tokens":3,"output_tokens":1}', Usage(3, 1)),
        (b'"usage":{"input_tokens":3,"output_tokens":1,"cache_read_input_tokens":2}', Usage(5, 1, 2)),
        (
            b'"usage":{"input_tokens":3,"output_tokens":1,"cache_read_input_tokens":16,"cache_creation_input_tokens":4}',
            Usage(23, 1, 16),
        ),
        (
            b'"response":{"usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":32,"cache_write_tokens":0,'
            b'"input_tokens_per_turn":[40],"cached_tokens_per_turn":[32]},"output_tokens":1,"output_tokens_details":'
            b'{"reasoning_tokens":0}},"user":null}',
            Usage(40, 1, 32),
        ),
        (b'"usage":{"prompt_tokens":1}} "usage":{"prompt_tokens":2}}', Usage(2)),
        (b'"usage":{"prompt_tokens":1}} "usage" : null', Usage()),  # the first one is part of a tool
        (b'"usage":{"prompt_tokens":"many"}', Usage()),
        (b'"usage":{broken}', Usage()),
        (b'"content":"\\"usage\\":{\\"prompt_tokens\\":9}"', Usage()),
    ],
)
def test_usage_is_read_from_each_apis_format(body, usage):
    assert find_usage([body]) == usage
    assert find_usage([body[:7], body[7:]]) == usage


def test_trim_keeps_the_end():
    pieces = [b"abc", b"def"]
    trim(pieces, 4)
    assert pieces == [b"cdef"]
    trim(pieces, 4)
    assert pieces == [b"cdef"]
    empty: list[bytes] = []
    trim(empty, 4)
    assert empty == []


def test_the_first_event_is_dropped_once_judged():
    first = FirstEvent()
    assert first.feed(b"data: " + b"x" * 60_000) is False
    assert first.feed(b"\n\n") is True
    assert not first._pending
