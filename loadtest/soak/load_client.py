"""Closed-loop clients that accept no error: they do not retry, and every answer must be complete."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from loadtest.drive.http import Connection

MODEL = "warmroute-simulated"
SHORT_TOKENS = (4, 24)
LONG_TOKENS = 150
LONG_SHARE = 0.05
THINK_S = 0.1
ANSWER_LIMIT_S = 60.0
_TEXT = "the quick brown fox jumps over a lazy dog while rain falls on the old mill by the river"


@dataclass(slots=True)
class Tally:
    """Results of the clients.

    `failures` has the reason of each failed request. `closes` counts answers that made a client close its kept
    connection.
    """

    requests: int = 0
    streams: int = 0
    connections: int = 0
    closes: int = 0
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list)


class BadAnswer(Exception):
    """An answer that does not match its request."""


class LoadClient:
    """One client, which sends a request, pauses, and repeats.

    If `keeps`, it uses one connection while the gateway allows.
    """

    def __init__(
        self, host: str, port: int, tally: Tally, rng: random.Random, say: Callable[[str], None], *, keeps: bool
    ) -> None:
        self._say = say
        self._host, self._port = host, port
        self._tally = tally
        self._rng = rng
        self._keeps = keeps
        self._connection: Connection | None = None

    async def run(self, over: asyncio.Event) -> None:
        """Send requests until `over` is set, and finish the last one."""
        while not over.is_set():
            await self._ask()
            await asyncio.sleep(self._rng.uniform(0.0, THINK_S))
        self._drop()

    async def _ask(self) -> None:
        stream = self._rng.random() < 0.5
        tokens = LONG_TOKENS if self._rng.random() < LONG_SHARE else self._rng.randint(*SHORT_TOKENS)
        tally = self._tally
        tally.requests += 1
        tally.streams += stream
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await self._exchange(stream, tokens)
        except (OSError, BadAnswer, TimeoutError) as error:
            kind = "kept connection" if self._keeps else "new connection"
            failure = f"{kind}, {'stream' if stream else 'whole'}: {type(error).__name__}: {error}"
            tally.failures.append(failure)
            self._say(f"failed: {failure}")
            self._drop()
        tally.slowest_s = max(tally.slowest_s, loop.time() - began_s)

    async def _exchange(self, stream: bool, tokens: int) -> None:
        connection = await self._connected()
        response = await connection.send(self._request(stream, tokens))
        body = await response.read()
        if response.status != 200:
            raise BadAnswer(f"status {response.status}: {body[:200]!r}")
        (check_stream if stream else check_whole)(body, tokens)
        if self._keeps and response.headers.get("connection") == "close":
            self._tally.closes += 1
        if not self._keeps:
            self._drop()

    async def _connected(self) -> Connection:
        if self._connection is None or not self._connection.reusable:
            self._drop()
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(Connection, self._host, self._port)
            self._tally.connections += 1
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(self, stream: bool, tokens: int) -> bytes:
        text = " ".join(self._rng.choices(_TEXT.split(), k=40))
        body = msgspec.json.encode(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "ignore_eos": True,
                "stream": stream,
            }
        )
        close = "" if self._keeps else "connection: close\r\n"
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{close}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def check_whole(body: bytes, tokens: int) -> None:
    """Check that `body` is a chat completion of `tokens` tokens.

    Raises:
        BadAnswer: it is not.
    """
    try:
        answer = msgspec.json.decode(body)
        reason, count = answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise BadAnswer(f"no chat completion: {body[:200]!r}") from None
    if (reason, count) != ("length", tokens):
        raise BadAnswer(f"ended by {reason} after {count} of {tokens} tokens")


def check_stream(body: bytes, tokens: int) -> None:
    """Check that `body` is a stream of `tokens` tokens that ran to its end.

    Raises:
        BadAnswer: it is not.
    """
    if not body.endswith(b"data: [DONE]\n\n"):
        raise BadAnswer(f"the stream ends with {body[-200:]!r}")
    if b'"finish_reason":"length"' not in body.replace(b" ", b""):
        raise BadAnswer(f"the stream of {tokens} tokens was cut short: {body[-300:]!r}")
