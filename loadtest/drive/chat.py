"""Send and time one request: a chat, or the completion of a prompt.

Times count from the intended send time, so a delay in the load generator makes the result worse, not better.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httptools
import msgspec

from loadtest.drive.http import Client


@dataclass(slots=True)
class Timing:
    """Timing of one request. Times are seconds; `ttft_s` ends at the first frame with text.

    `gaps_s` are the times between later frames with text. `error` is None if the answer was complete.
    """

    started_s: float
    ttft_s: float | None = None
    end_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    worker: str | None = None
    predicted_cached_tokens: int | None = None
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        if self.ttft_s is None or self.end_s is None or self.completion_tokens < 2:
            return None
        return (self.end_s - self.started_s - self.ttft_s) / (self.completion_tokens - 1)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    """A choice of a response. A chat's choice has a delta, a completion's has the text itself."""

    delta: _Delta | None = None
    text: str | None = None

    @property
    def words(self) -> str:
        return (self.text if self.delta is None else self.delta.content) or ""


class _Frame(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Frame)
_STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


async def chat(
    client: Client, body: dict[str, Any], intended_s: float | None = None, headers: dict[str, str] | None = None
) -> Timing:
    """Send one streamed chat completion and read it to its end. Failures are recorded, not raised."""
    return await _send(client, "/v1/chat/completions", msgspec.json.encode({**body, **_STREAMED}), intended_s, headers)


async def complete(
    client: Client, body: dict[str, Any], intended_s: float | None = None, headers: dict[str, str] | None = None
) -> Timing:
    """Send one streamed completion and read it to its end. Failures are recorded, not raised."""
    return await _send(client, "/v1/completions", msgspec.json.encode({**body, **_STREAMED}), intended_s, headers)


async def _send(
    client: Client, path: str, payload: bytes, intended_s: float | None, headers: dict[str, str] | None
) -> Timing:
    timing = Timing(started_s=asyncio.get_running_loop().time() if intended_s is None else intended_s)
    try:
        async with client.exchange(client.request_bytes("POST", path, payload, headers)) as response:
            timing.worker = response.headers.get("x-warmroute-worker")
            predicted = response.headers.get("x-warmroute-predicted-cached-tokens")
            timing.predicted_cached_tokens = int(predicted) if predicted else None
            if response.status != 200:
                timing.error = f"status {response.status}: {(await response.read())[:300]!r}"
                return timing
            await _read(response.stream(), timing)
    except (OSError, httptools.HttpParserError, msgspec.DecodeError, ValueError) as error:
        timing.error = f"{type(error).__name__}: {error}"
    return timing


async def _read(parts: Any, timing: Timing) -> None:
    rest = b""
    last_s = timing.started_s
    done = False
    texts: list[str] = []
    async for now_s, data in parts:
        *frames, rest = (rest + data).split(b"\n\n")
        for frame in frames:
            if not frame.startswith(b"data: "):
                continue
            if frame == b"data: [DONE]":
                done = True
                continue
            text = _take(_DECODER.decode(frame[6:]), timing)
            if not text:
                continue
            texts.append(text)
            if timing.ttft_s is None:
                timing.ttft_s = now_s - timing.started_s
            else:
                timing.gaps_s.append(now_s - last_s)
            last_s = now_s
    timing.text = "".join(texts)
    timing.end_s = last_s
    if not done and timing.error is None:
        timing.error = "the stream ended without [DONE]"


def _take(frame: _Frame, timing: Timing) -> str:
    if frame.error is not None:
        timing.error = f"error frame: {frame.error.get('message')}"
    if frame.usage is not None:
        timing.prompt_tokens = frame.usage.prompt_tokens
        timing.completion_tokens = frame.usage.completion_tokens
        details = frame.usage.prompt_tokens_details
        timing.cached_tokens = (details.cached_tokens or 0) if details else 0
    return "".join([choice.words for choice in frame.choices])
