"""The result of one request as its client sees it, classified for soak and fault tests.

An answer is complete only if it is well-formed to its end and has the requested length. An error is clean only if it
has the documented shape. Every other result is `BROKEN`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httptools
import msgspec

from loadtest.drive.http import Client, Response

DONE = b"data: [DONE]"


class Kind(StrEnum):
    """How a request ended for its client."""

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
    """The end of one request. Times are the loop's; `worker` and `request_id` come from the response's head.

    `code` is the error's code, `detail` the reason for the classification, and `text` the answer.
    """

    began_s: float
    kind: Kind = Kind.BROKEN
    ended_s: float = 0.0
    first_s: float | None = None
    status: int = 0
    code: str = ""
    detail: str = ""
    worker: str = ""
    request_id: str = ""
    text: str = ""

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
    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None

    @property
    def words(self) -> str:
        part = self.delta or self.message
        return (part.content if part is not None else self.text) or ""


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Body(msgspec.Struct):
    """An answer, one frame of it, or an error."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Fault | None = None


_DECODER = msgspec.json.Decoder(_Body)


async def observe(
    client: Client, path: str, body: Mapping[str, Any], *, headers: dict[str, str] | None = None, dawdle_s: float = 0.0
) -> Seen:
    """Send one request of OpenAI's completion or chat API and classify how it ends. Only cancellation is raised.

    `max_tokens` in `body` is the required length of the answer. With `dawdle_s` the reader pauses that long after each
    read.
    """
    loop = asyncio.get_running_loop()
    seen = Seen(began_s=loop.time())
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
        wanted = int(body.get("max_tokens", 0))
        if response.status == 200 and response.headers.get("content-type", "").startswith("text/event-stream"):
            await _read_stream(_paced(response, dawdle_s, seen), wanted, seen)
        else:
            whole = b"".join([data async for data in _paced(response, dawdle_s, seen)])
            _judge_whole(whole, wanted, seen)


async def _paced(response: Response, dawdle_s: float, seen: Seen) -> AsyncIterator[bytes]:
    async for now_s, data in response.stream():
        if seen.first_s is None:
            seen.first_s = now_s
        yield data
        if dawdle_s:
            await response.dawdle(dawdle_s)


def _judge_whole(whole: bytes, wanted: int, seen: Seen) -> None:
    body = _DECODER.decode(whole)
    if seen.status >= 400 and body.error is not None:
        seen.code = str(body.error.code)
        seen.end(Kind.REFUSED, body.error.message)
    elif seen.status == 200:
        seen.text = "".join(choice.words for choice in body.choices)
        _judge_length(body.usage, wanted, seen)
    else:
        seen.end(Kind.BROKEN, f"status {seen.status} without an error of the documented shape: {whole[:200]!r}")


async def _read_stream(parts: AsyncIterator[bytes], wanted: int, seen: Seen) -> None:
    rest, texts, ended = b"", [], False
    usage: _Usage | None = None
    async for data in parts:
        *frames, rest = (rest + data).split(b"\n\n")
        for frame in frames:
            if frame.startswith(b":"):
                continue
            if ended or not frame.startswith(b"data: "):
                seen.end(Kind.BROKEN, f"not an event of this API, or behind the last one: {frame[:100]!r}")
                return
            if frame == DONE:
                ended = True
                continue
            body = _DECODER.decode(frame[6:])
            usage = body.usage or usage
            texts += [choice.words for choice in body.choices]
            if body.error is not None:
                seen.code, seen.detail = str(body.error.code), body.error.message
    seen.text = "".join(texts)
    if rest or not ended:
        seen.end(Kind.BROKEN, f"the stream ended cleanly without [DONE]: {rest[-100:]!r}")
    elif seen.code:
        seen.end(Kind.ERROR_EVENT, seen.detail)
    else:
        _judge_length(usage, wanted, seen)


def _judge_length(usage: _Usage | None, wanted: int, seen: Seen) -> None:
    got = usage.completion_tokens if usage is not None else -1
    if got == wanted:
        seen.end(Kind.COMPLETE)
    else:
        seen.end(Kind.BROKEN, f"{wanted} tokens were asked for, {got} came")
