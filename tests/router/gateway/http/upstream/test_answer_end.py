import json

import pytest

from router.gateway.http.upstream.answer_end import ANSWER_ENDS, RECENT_BYTES, AnswerFault

CHAT, TEXT, MESSAGES, RESPONSES = (
    ANSWER_ENDS[path] for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
)
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"engine died","code":500}}\n\n'
NAMED_ERROR = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"m"}}\n\n'


def data(document, name=""):
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(document)}\n\n".encode()


def choice(text="a", finish=None, index=0, **more):
    return data({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}], **more})


def delta(stop_reason=None):
    return data({"type": "message_delta", "delta": {"stop_reason": stop_reason}}, "message_delta")


def response_event(kind, output_tokens=3, status="completed", **more):
    usage = None if output_tokens is None else {"input_tokens": 5, "output_tokens": output_tokens}
    document = {"object": "response", "status": status, "tools": more.pop("tools", []), "usage": usage}
    return data({"response": document, "type": f"response.{kind}"}, f"response.{kind}")


USAGE = data({"choices": [], "usage": {"prompt_tokens": 1}})
START = data({"type": "message_start", "message": {"stop_reason": None}}, "message_start")
WORD = data({"type": "content_block_delta", "delta": {"text": "a"}}, "content_block_delta")
STOP = data({"type": "message_stop"}, "message_stop")
CREATED = data({"response": {"output": []}, "type": "response.created"}, "response.created")
PIECE = data({"delta": "a", "type": "response.output_text.delta"}, "response.output_text.delta")
TEXT_DONE = data({"text": "x" * 2 * RECENT_BYTES, "type": "response.output_text.done"}, "response.output_text.done")

WHOLE = {
    "chat": (CHAT, choice() + choice("", "stop") + DONE),
    "chat without a finish reason": (CHAT, choice() + DONE),
    "chat without [DONE]": (CHAT, choice() + choice("", "length") + USAGE),
    "one of two choices has finished": (CHAT, choice(finish="stop") + choice(index=1)),
    "[DONE] without a line's end": (CHAT, choice() + DONE[:-2]),
    "[DONE] after CRLF": (CHAT, (choice() + DONE).replace(b"\n", b"\r\n")),
    "a finish reason without a line's end": (CHAT, choice() + choice("", "stop")[:-2]),
    "a chat's error": (CHAT, choice() + ERROR),
    "an error and a comment": (CHAT, choice() + ERROR + b": bye\n\n"),
    "the beginning of the last event is not there": (CHAT, b'x" * 9000"},"finish_reason":null}]}\n\n'),
    "comments alone": (CHAT, b": a\n\n: b\n\n"),
    "a text": (TEXT, data({"choices": [{"text": "a", "finish_reason": "stop"}]})),
    "a message": (MESSAGES, START + WORD + delta("end_turn") + STOP),
    "a message without names": (MESSAGES, data({"type": "message_delta"}) + data({"type": "message_stop"})),
    "a message's error": (MESSAGES, START + WORD + NAMED_ERROR),
    "a response": (RESPONSES, CREATED + PIECE + response_event("completed")),
    "a failed response": (RESPONSES, CREATED + PIECE + response_event("failed", None, "failed")),
    "an incomplete response": (RESPONSES, CREATED + PIECE + response_event("incomplete", status="incomplete")),
    "a response and [DONE]": (RESPONSES, CREATED + response_event("completed") + DONE),
    "a response's error": (RESPONSES, CREATED + PIECE + NAMED_ERROR),
    "a long last event": (RESPONSES, (b"x" * 9_000 + response_event("completed"))[-RECENT_BYTES:]),
    "a long last event whose type stands first": (RESPONSES, b'x"}],"usage":{"output_tokens":0}}}\n\n'),
}
CUT = {
    "chat": (CHAT, choice() + choice()),
    "chat, within [DONE]": (CHAT, choice() + b"data: [DON"),
    "chat, within an event": (CHAT, choice() + b'data: {"cho'),
    "chat, before its usage": (CHAT, choice() + USAGE),
    "the text speaks of an end": (CHAT, choice('data: [DONE] "finish_reason":"stop"')),
    "a tool call": (CHAT, data({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": '{"a'}}]}}]})),
    "chat, then a comment": (CHAT, choice() + b": bye\n\n"),
    "a text": (TEXT, data({"choices": [{"text": "a", "finish_reason": None}]})),
    "a message": (MESSAGES, START + WORD),
    "a message before its last event": (MESSAGES, START + WORD + delta("end_turn")),
    "a message and [DONE]": (MESSAGES, START + WORD + DONE),
    "a response": (RESPONSES, CREATED + PIECE),
    "a response after a long text": (RESPONSES, (CREATED + TEXT_DONE)[-RECENT_BYTES:]),
    "a response within its last event": (RESPONSES, CREATED + PIECE + response_event("completed")[:-9]),
    "a response within its last event's name": (RESPONSES, CREATED + PIECE + b"event: response.completed\nda"),
    "a message within its last event": (MESSAGES, START + WORD + delta("end_turn") + STOP[:-9]),
    "chat, within an event with a finish reason": (CHAT, choice() + choice("", "stop")[:-6]),
}
ABORTED = {
    "chat": (CHAT, choice() + choice("", "abort")),
    "chat with an end": (CHAT, choice("", "abort") + USAGE + DONE),
    "one of two choices": (CHAT, choice(finish="stop") + choice("", "abort", 1) + DONE),
    "a text": (TEXT, data({"choices": [{"text": "", "finish_reason": "abort"}]}) + DONE),
    "a message": (MESSAGES, START + WORD + delta() + STOP),
    "an empty response": (RESPONSES, CREATED + response_event("completed", 0)),
    "an empty incomplete response": (RESPONSES, CREATED + response_event("incomplete", 0, "incomplete")),
    "a cancelled response": (RESPONSES, CREATED + PIECE + response_event("completed", 3, "cancelled")),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_stream_has_no_fault(case):
    end, recent = WHOLE[case]
    assert end.of_stream(recent, True) is AnswerFault.NONE


@pytest.mark.parametrize("case", CUT)
def test_a_stream_without_its_last_event_is_cut_once_http_has_ended(case):
    end, recent = CUT[case]
    assert end.of_stream(recent, True) is AnswerFault.CUT
    assert end.of_stream(recent, False) is AnswerFault.NONE


@pytest.mark.parametrize("case", ABORTED)
def test_an_aborted_stream_shows_before_http_ends_it(case):
    end, recent = ABORTED[case]
    assert end.of_stream(recent, False) is AnswerFault.ABORTED
    assert end.of_stream(recent, True) is AnswerFault.ABORTED
    assert end.suspects(recent)


@pytest.mark.parametrize(
    ("end", "recent"),
    [
        (CHAT, choice('"finish_reason":"abort"')),
        (CHAT, data({"choices": [{"delta": {"content": "abort"}}], "word": "abort"})),
        (MESSAGES, START + WORD + delta() + WORD),
        (RESPONSES, response_event("completed", tools=[{"schema": {"status": "cancelled", "output_tokens": 0}}])),
        (RESPONSES, response_event("completed", None)),
    ],
)
def test_what_only_looks_like_an_abort_is_none(end, recent):
    assert end.of_stream(recent, False) is AnswerFault.NONE


def message(**more):
    return {"type": "message", "content": [{"type": "text", "text": ""}], **more}


def response(output_tokens, status="completed", **more):
    return {"object": "response", "status": status, "usage": {"output_tokens": output_tokens}, **more}


@pytest.mark.parametrize(
    ("end", "document", "fault"),
    [
        (CHAT, {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}, AnswerFault.NONE),
        (CHAT, {"choices": [{"message": {"content": 'say "finish_reason":"abort"'}}]}, AnswerFault.NONE),
        (CHAT, {"choices": [{"message": {"content": "a"}, "finish_reason": "abort"}]}, AnswerFault.ABORTED),
        (CHAT, {"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}, AnswerFault.ABORTED),
        (MESSAGES, message(stop_reason="end_turn"), AnswerFault.NONE),
        (MESSAGES, message(stop_reason=None), AnswerFault.ABORTED),
        (MESSAGES, message(), AnswerFault.ABORTED),
        (MESSAGES, {"type": "error", "error": {"message": "m"}}, AnswerFault.NONE),
        (MESSAGES, {"input_tokens": 3}, AnswerFault.NONE),
        (RESPONSES, response(3), AnswerFault.NONE),
        (RESPONSES, response(0), AnswerFault.ABORTED),
        (RESPONSES, response(3, "cancelled"), AnswerFault.ABORTED),
        (RESPONSES, response(0, "failed"), AnswerFault.NONE),
        (RESPONSES, {"object": "response", "status": "queued", "usage": None}, AnswerFault.NONE),
        (RESPONSES, response(3, tools=[{"default": {"output_tokens": 0}}]), AnswerFault.NONE),
    ],
)
def test_a_body_tells_of_an_abort(end, document, fault):
    assert end.of_body(json.dumps(document).encode()) is fault
    assert end.of_body(json.dumps(document, separators=(",", ":")).encode()) is fault


@pytest.mark.parametrize("end", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("body", [b"", b"no JSON", b'{"usage":{"output_tokens":0', b"[" * 5_000 + b'"output_tokens":0'])
def test_a_body_that_cannot_be_read_has_no_fault(end, body):
    assert end.of_body(body) is AnswerFault.NONE
