"""Requests to the worker, and what it counts of them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from loadtest.calibrate.readings import CalibrationError
from loadtest.calibrate.worker.tokens import Arrival

PREFILL_TIME = "vllm:request_prefill_time_seconds"
HITS = "vllm:prefix_cache_hits_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
_ANSWER_S = 600.0
_COUNTED_S = 5.0
"""The worker's counters follow the end of an answer within this time."""
_POLL_S = 0.05


class _Choice(msgspec.Struct):
    index: int = 0
    text: str = ""
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: msgspec.Raw = msgspec.Raw()


_CHUNK = msgspec.json.Decoder(_Chunk)


@dataclass(frozen=True, slots=True)
class Counted:
    """The worker's own numbers. `prefill_s` is the sum over the `prefills` prompts since its start."""

    prefills: int
    prefill_s: float
    hit_tokens: int
    prompt_tokens: int


class Calls:
    """Completions of random token ids at one worker."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: str) -> None:
        self._http = http
        self._url = url
        self._model = model

    async def answer(self, prompt: Sequence[int]) -> None:
        """Send one prompt for one token."""
        async for _ in self._events({"prompt": prompt, "max_tokens": 1}):
            pass

    async def stream(
        self, prompts: Sequence[Sequence[int]], output_tokens: int, arrived: Callable[[Arrival], None]
    ) -> None:
        """Send `prompts` at once, and report the tokens of each as they come."""
        async for at_s, chunk in self._events({"prompt": prompts, "max_tokens": output_tokens}):
            for choice in chunk.choices:
                if tokens := len(choice.token_ids) if choice.token_ids is not None else 1:
                    arrived(Arrival(at_s, choice.index, tokens))

    async def counted(self) -> Counted:
        try:
            page = (await self._http.get(f"{self._url}/metrics")).raise_for_status().text
        except httpx.HTTPError as error:
            raise CalibrationError(f"{self._url}/metrics: {error!r}") from error
        return Counted(
            prefills=int(sample(page, f"{PREFILL_TIME}_count")),
            prefill_s=sample(page, f"{PREFILL_TIME}_sum"),
            hit_tokens=int(sample(page, HITS)),
            prompt_tokens=int(sample(page, PROMPT_TOKENS)),
        )

    async def counted_after(self, before: Counted) -> Counted:
        """Return the numbers once a further prompt is in them; as they are if that takes too long."""
        end_s = time.monotonic() + _COUNTED_S
        while (now := await self.counted()).prefills == before.prefills and time.monotonic() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return now

    async def _events(self, fields: Mapping[str, object]) -> AsyncIterator[tuple[float, _Chunk]]:
        body = {"model": self._model, "stream": True, "ignore_eos": True, "temperature": 1.0, **fields}
        content = msgspec.json.encode({**body, "return_token_ids": True})
        headers = {"content-type": "application/json"}
        try:
            async with self._http.stream(
                "POST", f"{self._url}/v1/completions", content=content, headers=headers, timeout=_ANSWER_S
            ) as response:
                if response.status_code != 200:
                    raise CalibrationError(
                        f"the worker answered {response.status_code}: {(await response.aread())[:500]!r}"
                    )
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        yield time.monotonic(), _read(line)
        except httpx.HTTPError as error:
            raise CalibrationError(f"{self._url}: {error!r}") from error


def sample(page: str, name: str) -> float:
    """Return the sum over the labels of a metric; 0.0 without it."""
    pattern = rf"^{re.escape(name)}(?:\{{[^}}\n]*\}})? (\S+)"
    return sum(float(value) for value in re.findall(pattern, page, re.MULTILINE))


def _read(line: str) -> _Chunk:
    try:
        chunk = _CHUNK.decode(line[6:])
    except msgspec.DecodeError as error:
        raise CalibrationError(f"the worker sent {line[:200]!r}: {error}") from None
    if bytes(chunk.error):
        raise CalibrationError(f"the worker sent an error: {bytes(chunk.error)[:500].decode('utf-8', 'replace')}")
    return chunk
