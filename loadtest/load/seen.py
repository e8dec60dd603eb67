"""Send one request, time it, and classify its end as the client sees it.

An answer is complete only if it is well-formed to its end and has the requested length. An error is clean only if it
has the documented shape. Every other result is `BROKEN`. Times count from the intended send time, so a delay in the
load generator makes the result worse, not better.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httptools
import msgspec

from loadtest.load.http import Client, Response

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields of a body that ask for a stream with usage."""
_DONE = b"data: [DONE]"


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
    """One request. Times are the loop's; `worker` and `request_id` come from the response's head.

    `first_s` is the time of the first byte, `ttft_s` the seconds to the first frame with text, `gaps_s` the seconds
    between later ones, and `last_s` the time of the last one. `code` is the error's code, `detail` the reason for the
    classification, and `text` the answer.
    """

    began_s: float
    kind: Kind = Kind.BROKEN
    ended_s: float = 0.0
    first_s: float | None = None
    ttft_s: float | None = None
    last_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    status: int = 0
    code: str = ""
    detail: str = ""
    worker: str = ""
    request_id: str = ""
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    predicted_cached_tokens: int | None = None

    @property
    def error(self) -> str | None:
        """Why the answer is not complete, in words."""
        if self.kind is Kind.COMPLETE:
            return None
        return " ".join(word for word in (f"{self.kind}:", f"status {self.status}", self.code, self.detail) if word)

    @property
    def tpot_s(self) -> float | None:
        if self.ttft_s is None or self.last_s is None or self.completion_tokens < 2:
            return None
        return (self.last_s - self.began_s - self.ttft_s) / (self.completion_tokens - 1)

    def end(self, kind: Kind, detail: str = "") -> None:
        self.kind, self.detail = kind, detail


class _Fault(msgspec.Struct):
    """An error in OpenAI's shape. vLLM's own codes are numbers."""

    code: str | int
    message: str
    type: str


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    """A choice of a response: a chat's has a delta or a message, a completion's the text itself."""

    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None

    @property
    def words(self) -> str:
        part = self.delta or self.message
        return (part.content if part is not None else self.text) or ""


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
    headers: dict[str, str] | None = None,
    dawdle_s: float = 0.0,
) -> Seen:
    """Send one request of OpenAI's completion or chat API and classify how it ends. Only cancellation is raised.

    `max_tokens` in `body` is the required length of the answer. With `dawdle_s` the reader pauses that long after each
    read.
    """
    loop = asyncio.get_running_loop()
    seen = Seen(began_s=loop.time() if intended_s is None else intended_s)
    try:
        await _exchange(client, path, body, headers, dawdle_s, seen)
    except (OSError, EOFError) as error:
        seen.end(Kind.CUT if seen.status else Kind.UNANSWERED, f"{type(error).__name__}: {error}")
    except (httptools.HttpParserError, msgspec.MsgspecError, ValueError) as error:
        seen.end(Kind.BROKEN, f"{type(error).__name__}: {error}")
    seen.ended_s = loop.time()
    return seen


async def _exchange(
    client: Client, path: str, body: Mapping[str, Any], headers: dict[str, str] | None, dawdle_s: float, seen: Seen
) -> None:
    request = client.request_bytes("POST", path, msgspec.json.encode(body), headers)
    async with client.exchange(request) as response:
        seen.status = response.status
        seen.worker = response.headers.get("x-warmroute-worker", "")
        seen.request_id = response.headers.get("x-request-id", "")
        predicted = response.headers.get("x-warmroute-predicted-cached-tokens")
        seen.predicted_cached_tokens = int(predicted) if predicted else None
        wanted = int(body.get("max_tokens", 0))
        parts = _paced(response, dawdle_s, seen)
        if response.status == 200 and response.headers.get("content-type", "").startswith("text/event-stream"):
            await _read_stream(parts, wanted, seen)
        else:
            _judge_whole(b"".join([data async for _, data in parts]), wanted, seen)


async def _paced(response: Response, dawdle_s: float, seen: Seen) -> AsyncIterator[tuple[float, bytes]]:
    async for now_s, data in response.stream():
        if seen.first_s is None:
            seen.first_s = now_s
        yield now_s, data
        if dawdle_s:
            await response.dawdle(dawdle_s)


def _judge_whole(whole: bytes, wanted: int, seen: Seen) -> None:
    body = _DECODER.decode(whole)
    if seen.status >= 400 and body.error is not None:
        seen.code = str(body.error.code)
        seen.end(Kind.REFUSED, body.error.message)
    elif seen.status == 200:
        seen.text = body.words
        _judge_length(body.usage, wanted, seen)
    else:
        seen.end(Kind.BROKEN, f"status {seen.status} without an error of the documented shape: {whole[:200]!r}")


async def _read_stream(parts: AsyncIterator[tuple[float, bytes]], wanted: int, seen: Seen) -> None:
    rest, texts, ended = b"", [], False
    usage: _Usage | None = None
    async for now_s, data in parts:
        *frames, rest = (rest + data).split(b"\n\n")
        for frame in frames:
            if frame.startswith(b":"):
                continue
            if ended or not frame.startswith(b"data: "):
                seen.end(Kind.BROKEN, f"not an event of this API, or behind the last one: {frame[:100]!r}")
                return
            if frame == _DONE:
                ended = True
                continue
            body = _DECODER.decode(frame[6:])
            usage = body.usage or usage
            if text := body.words:
                texts.append(text)
                _note_time(now_s, seen)
            if body.error is not None:
                seen.code, seen.detail = str(body.error.code), body.error.message
    seen.text = "".join(texts)
    if rest or not ended:
        seen.end(Kind.BROKEN, f"the stream ended cleanly without [DONE]: {rest[-100:]!r}")
    elif seen.code:
        seen.end(Kind.ERROR_EVENT, seen.detail)
    else:
        _judge_length(usage, wanted, seen)


def _note_time(now_s: float, seen: Seen) -> None:
    if seen.last_s is None:
        seen.ttft_s = now_s - seen.began_s
    else:
        seen.gaps_s.append(now_s - seen.last_s)
    seen.last_s = now_s


def _judge_length(usage: _Usage | None, wanted: int, seen: Seen) -> None:
    if usage is not None:
        seen.prompt_tokens, seen.completion_tokens = usage.prompt_tokens, usage.completion_tokens
        details = usage.prompt_tokens_details
        seen.cached_tokens = (details.cached_tokens or 0) if details else 0
    got = usage.completion_tokens if usage is not None else -1
    if got == wanted:
        seen.end(Kind.COMPLETE)
    else:
        seen.end(Kind.BROKEN, f"{wanted} tokens were asked for, {got} came")
