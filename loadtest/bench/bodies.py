"""Prepared requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import msgspec

from loadtest.bench.frames import MODEL
from loadtest.load.http import Client

VARIANTS = 64
"""Number of different questions after the same system prompt.

Each one's whole prefix is cached after its first request.
"""
PATH = "/v1/chat/completions"
ENDLESS = 10_000_000
"""Length of a stream in tokens that ends only when the bench makes the stand-in end it."""
_LINE = "Answer in one short paragraph and name the function you speak about. "
_TURNS, _TURN_LINES, _QUESTION_LINES = 40, 29, 12
_MARK = "THE-NUMBER"
_numbers = itertools.count()
"""Numbers of the questions of this process: two windows of one proxy must not ask the same."""


def chat_body(stream: bool, max_tokens: int, system_chars: int, tail: str) -> bytes:
    """Return a chat request whose prompt is a shared system text of `system_chars` characters and a short question."""
    system = (_LINE * (system_chars // len(_LINE) + 1))[:system_chars]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question {tail}"}]
    return msgspec.json.encode({"model": MODEL, "messages": messages, "stream": stream, "max_tokens": max_tokens})


def next_turns(url: str, headers: Mapping[str, str], turns: int = _TURNS) -> Iterator[bytes]:
    """Yield requests without end: each asks a new question of about 200 tokens after one conversation.

    40 turns have 20,000 tokens.

    No question is asked twice by one process, whoever calls.
    """
    said = [
        {"role": ("user", "assistant")[turn % 2], "content": f"{turn}: {_LINE * _TURN_LINES}"} for turn in range(turns)
    ]
    question = {"role": "user", "content": f"{_MARK} {_LINE * _QUESTION_LINES}"}
    fields = {"model": MODEL, "messages": [*said, question], "stream": False, "max_tokens": 16}
    before, after = msgspec.json.encode(fields).split(_MARK.encode())
    for number in _numbers:
        yield post(url, b"%b%012d%b" % (before, number, after), headers)


def post(url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    return Client(url).request_bytes("POST", PATH, body, headers)


def chats(url: str, headers: Mapping[str, str], system_chars: int = 2_000, endless: bool = False) -> list[bytes]:
    """Return requests for answers that are not streamed, or for streams that the bench makes the stand-in end."""
    return [
        post(url, chat_body(endless, ENDLESS if endless else 16, system_chars, f"number {index}"), headers)
        for index in range(VARIANTS)
    ]
