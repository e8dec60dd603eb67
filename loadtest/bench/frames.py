"""The stand-in's prepared answers, and the bytes that identify their tokens."""

from __future__ import annotations

import msgspec

MODEL = "stand-in"
ANSWER_TOKENS = 16
TEXT = " token" * ANSWER_TOKENS
"""Content of every answer that is not streamed."""
TOKEN_MARK = b'" token'
"""Occurs in each streamed token and nowhere else, also after a proxy has rebuilt the JSON."""
DIFFERENT_TOKENS = 10
"""LiteLLM ends a stream that repeats the same token a hundred times."""
DONE = b"[DONE]"

_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def json_response(body: bytes) -> bytes:
    return _JSON % (len(body), body)


def answer(prompt_tokens: int, cached_tokens: int, chat: bool = True) -> bytes:
    """Return a whole response that reports these counts, of the chat API or the completion API."""
    content = {"message": {"role": "assistant", "content": TEXT}} if chat else {"text": TEXT}
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, **content, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": ANSWER_TOKENS,
            "total_tokens": prompt_tokens + ANSWER_TOKENS,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        },
    }
    return json_response(msgspec.json.encode(body))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frame(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
    }
    return _chunk(b"data: " + msgspec.json.encode(body) + b"\n\n")


FIRST = _STREAM + _frame({"role": "assistant", "content": ""})
TOKENS = tuple(_frame({"content": f" token{number}"}) for number in range(DIFFERENT_TOKENS))
LAST = _frame({}, "length") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
