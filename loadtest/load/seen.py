"""Send one request, time it, and classify its end as the client sees it.

An answer is complete only if it is well-formed to its end and, where `observe` is `exact`, has the requested length.
An error is clean only if it has the documented shape. Every other result is `BROKEN`. Times count from the intended
send time, so a delay in the load generator makes the result worse, not better.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httptools
import msgspec

from loadtest.load.http import Client

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields of a body that ask for a stream with usage."""


class Kind(StrEnum):
    COMPLETE = "complete"
    REFUSED = "refused"
    """An error with a status and a code before the first byte of an answer."""
    ERROR_EVENT = "error_event"
    """An answer or comments, followed by an error event and a clean end."""
    CUT = "cut"
    """An answer that began and whose connection was then closed, so that the client notices the loss."""
    UNANSWERED = "unanswered"
    """The connection was closed, or could not be opened, before the first byte of an answer."""
    LEFT = "left"
    """The client left on purpose."""
    BROKEN = "broken"


@dataclass(slots=True)
class Seen:
    """One request. Times are of `time.monotonic`, which uvloop's clock rounds to milliseconds.

    `first_s` is the time of the first byte of the body, `chunk_s` that of the first event with choices, a role alone
    included, `stamps_s` those of the events with tokens from the first text on, reasoning and tool calls included, and
    `answer_s` that of the first one with text of the answer. `code` is the error's code, `detail` the reason for the
    classification, and `text` the answer. `worker` and `request_id` come from the response's head. `cached_tokens` is 0
    unless `says_cached`.
    """

    began_s: float
    kind: Kind = Kind.BROKEN
    sent_s: float = 0.0
    ended_s: float = 0.0
    first_s: float | None = None
    chunk_s: float | None = None
    answer_s: float | None = None
    stamps_s: list[float] = field(default_factory=list)
    status: int = 0
    code: str = ""
    detail: str = ""
    worker: str = ""
    request_id: str = ""
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    says_cached: bool = False
    completion_tokens: int = 0
    predicted_cached_tokens: int | None = None

    @property
    def ttft_s(self) -> float | None:
        return self.stamps_s[0] - self.began_s if self.stamps_s else None

    @property
    def last_s(self) -> float | None:
        return self.stamps_s[-1] if self.stamps_s else None

    @property
    def error(self) -> str | None:
        """Why the answer is not complete, in words."""
        if self.kind is Kind.COMPLETE:
            return None
        return " ".join(word for word in (f"{self.kind}:", f"status {self.status}", self.code, self.detail) if word)

    @property
    def tpot_s(self) -> float | None:
        if not self.stamps_s or self.completion_tokens < 2:
            return None
        return (self.stamps_s[-1] - self.stamps_s[0]) / (self.completion_tokens - 1)

    def end(self, kind: Kind, detail: str = "") -> None:
        self.kind, self.detail = kind, detail


class _Fault(msgspec.Struct):
    """An error in OpenAI's shape. vLLM's own codes are numbers."""

    code: str | int
    message: str
    type: str


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    """A choice of a response: a chat's has a delta or a message, a completion's the text itself."""

    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def words(self) -> str:
        part = self.delta or self.message
        return (part.content if part is not None else self.text) or ""

    @property
    def thinks(self) -> bool:
        part = self.delta
        return part is not None and bool(part.reasoning or part.reasoning_content or part.tool_calls)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Fault | None = None

    @property
    def words(self) -> str:
        return "".join([choice.words for choice in self.choices])


_DECODER = msgspec.json.Decoder(_Body)


async def chat(client: Client, body: Mapping[str, Any], intended_s: float | None = None) -> Seen:
    return await observe(client, CHAT, {**body, **STREAMED}, intended_s=intended_s)


async def observe(
    client: Client,
    path: str,
    body: Mapping[str, Any],
    *,
    intended_s: float | None = None,
    headers: Mapping[str, str] | None = None,
    dawdle_s: float = 0.0,
    exact: bool = True,
) -> Seen:
    """Send one request of OpenAI's completion or chat API and classify how it ends. Only cancellation is raised.

    With `exact`, `max_tokens` in `body` is the required length of the answer. With `dawdle_s` the reader pauses that
    long after each read.
    """
    seen = Seen(began_s=time.monotonic() if intended_s is None else intended_s)
    request = client.request_bytes("POST", path, msgspec.json.encode(body), headers)
    await watch(client, request, seen, int(body.get("max_tokens", 0)) if exact else None, dawdle_s)
    return seen


async def watch(
    client: Client, request: bytes, seen: Seen, wanted_tokens: int | None = None, dawdle_s: float = 0.0
) -> None:
    """Send a whole request and note in `seen` how it ends. `wanted_tokens` is the required length of the answer."""
    reader = _Reader(seen, wanted_tokens, dawdle_s)
    try:
        async with client.lent() as connection:
            seen.sent_s = time.monotonic()
            connection.send(request, reader)
            await reader.ended
    except (OSError, EOFError) as error:
        seen.end(Kind.CUT if seen.status else Kind.UNANSWERED, f"{type(error).__name__}: {error}")
    except (httptools.HttpParserError, msgspec.MsgspecError, ValueError) as error:
        seen.end(Kind.BROKEN, f"{type(error).__name__}: {error}")
    seen.ended_s = time.monotonic()


class _Reader:
    """Reads a response into `seen` as it comes; `ended` has the error that broke it, if one did."""

    def __init__(self, seen: Seen, wanted_tokens: int | None, dawdle_s: float) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seen = seen
        self._wanted_tokens = wanted_tokens
        self._dawdle_s = dawdle_s
        self._transport: asyncio.Transport | None = None
        self._streams = self._done = False
        self._rest = b""
        self._texts: list[str] = []
        self._usage: _Usage | None = None

    def on_head(self, status: int, headers: dict[str, str], transport: asyncio.Transport) -> None:
        seen, self._transport = self._seen, transport
        seen.status = status
        seen.worker = headers.get("x-warmroute-worker", "")
        seen.request_id = headers.get("x-request-id", "")
        predicted = headers.get("x-warmroute-predicted-cached-tokens", "")
        seen.predicted_cached_tokens = int(predicted) if predicted.isdigit() else None
        self._streams = status == 200 and headers.get("content-type", "").startswith("text/event-stream")

    def on_part(self, now_s: float, data: bytes) -> None:
        if self._seen.first_s is None:
            self._seen.first_s = now_s
        if self._dawdle_s and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._dawdle_s, self._go_on, self._transport)
        self._rest += data
        if not self._streams or self.ended.done():
            return
        *frames, self._rest = self._rest.replace(b"\r\n", b"\n").split(b"\n\n")
        try:
            for frame in frames:
                self._read(frame, now_s)
        except (msgspec.MsgspecError, ValueError) as error:
            self.ended.set_exception(error)

    @staticmethod
    def _go_on(transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.resume_reading()

    def _read(self, frame: bytes, now_s: float) -> None:
        if frame.startswith(b":"):
            return
        if self._done or not frame.startswith(b"data:"):
            raise ValueError(f"not an event of this API, or behind the last one: {frame[:100]!r}")
        data = frame[5:].lstrip()
        if data == b"[DONE]":
            self._done = True
            return
        body = _DECODER.decode(data)
        if body.choices:
            self._choose(body, now_s)
        self._usage = body.usage or self._usage
        if body.error is not None:
            self._seen.code, self._seen.detail = str(body.error.code), body.error.message

    def _choose(self, body: _Body, now_s: float) -> None:
        seen = self._seen
        if seen.chunk_s is None:
            seen.chunk_s = now_s
        if text := body.words:
            self._texts.append(text)
            seen.stamps_s.append(now_s)
            if seen.answer_s is None:
                seen.answer_s = now_s
        elif any(choice.thinks or self._is_token(choice) for choice in body.choices):
            seen.stamps_s.append(now_s)

    def _is_token(self, choice: _Choice) -> bool:
        """Return whether an event without text is a token: some have no text of their own, and so may the only one."""
        return choice.finish_reason is None if self._seen.stamps_s else choice.finish_reason is not None

    def on_end(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            try:
                self._judge_stream() if self._streams else self._judge_whole()
            except (msgspec.MsgspecError, ValueError) as wrong:
                error = wrong
        self._seen.text = self._seen.text or "".join(self._texts)
        self.ended.set_exception(error) if error is not None else self.ended.set_result(None)

    def _judge_stream(self) -> None:
        if self._rest or not self._done:
            self._seen.end(Kind.BROKEN, f"the stream ended cleanly without [DONE]: {self._rest[-100:]!r}")
        elif self._seen.code:
            self._seen.end(Kind.ERROR_EVENT, self._seen.detail)
        else:
            self._judge_length()

    def _judge_whole(self) -> None:
        seen = self._seen
        if seen.status >= 400 and self._wanted_tokens is None:
            seen.end(Kind.REFUSED, self._rest[:200].decode("utf-8", "replace"))
            return
        body = _DECODER.decode(self._rest)
        if seen.status >= 400 and body.error is not None:
            seen.code = str(body.error.code)
            seen.end(Kind.REFUSED, body.error.message)
        elif seen.status == 200:
            seen.text, self._usage = body.words, body.usage
            self._judge_length()
        else:
            seen.end(
                Kind.BROKEN, f"status {seen.status} without an error of the documented shape: {self._rest[:200]!r}"
            )

    def _judge_length(self) -> None:
        seen, usage, wanted = self._seen, self._usage, self._wanted_tokens
        if usage is not None:
            seen.prompt_tokens, seen.completion_tokens = usage.prompt_tokens, usage.completion_tokens
            details = usage.prompt_tokens_details
            seen.says_cached = details is not None and details.cached_tokens is not None
            seen.cached_tokens = (details.cached_tokens or 0) if details else 0
        got = usage.completion_tokens if usage is not None else -1
        if wanted is None and not self._streams:
            seen.end(Kind.BROKEN, "the answer is no stream, so it has no times")
        elif wanted is None or got == wanted:
            seen.end(Kind.COMPLETE if wanted is not None or seen.stamps_s else Kind.BROKEN, "")
        else:
            seen.end(Kind.BROKEN, f"{wanted} tokens were asked for, {got} came")
