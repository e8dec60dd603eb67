"""Send a worker the same prompt twice, and read the number of cached tokens from the response or from counters."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

import msgspec

from backends.foreign_json import read_json
from backends.vllm.control import ProbeError, RefusedError, WorkerClient
from backends.vllm.probe import read_metrics
from backends.worker import Endpoint
from router.placement.fleet.rank_numbers import RankNumbers

PATH = "/v1/completions"
SETTLE_S = 2.0
"""Maximum wait for counters to show a finished request. vLLM updates them at the end of a step."""
POLL_S = 0.02
NO_COUNTER = "its hit counter cannot be read"
OTHER_TRAFFIC = "its hit counter moved for other requests, too"
MOST_WORDS = 16_384
"""Maximum words in a prompt at any reported block size: about 150 kB."""
_WORD_DIGITS = 8


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _Details | None = None


class _Completion(msgspec.Struct):
    usage: _Usage


@dataclass(frozen=True, slots=True)
class _Counters:
    queries: int
    hits: int


@dataclass(frozen=True, slots=True)
class CacheTrialResult:
    """Tokens of the second prompt that were cached, as reported and as counted.

    `reported` is None if the response has no such number. `counted` is None if the response has it, or if the counters
    cannot be read or also moved for other requests; `why_not` gives the reason.
    """

    prompt_tokens: int
    reported: int | None
    counted: int | None = None
    why_not: str = ""

    def proves_no_caching(self, block_tokens: int) -> bool:
        """Return whether the counter moved for this prompt alone and shows no hit, although the prompt fills a
        block."""
        return self.reported is None and self.counted == 0 and self.prompt_tokens > block_tokens


class CacheTrial:
    """A short prompt, sent to a worker twice. `rank` is None if the endpoint has one rank."""

    def __init__(
        self,
        client: WorkerClient,
        endpoint: Endpoint,
        body: bytes,
        *,
        answer_s: float,
        rank: int | None = None,
        ranks: RankNumbers | None = None,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._body = body
        self._answer_s = answer_s
        self._rank = rank
        self._ranks = ranks or RankNumbers()

    async def first(self) -> int:
        """Send the prompt; return its length in tokens.

        Raises:
            ProbeError: no usable answer.
        """
        return (await self._ask()).prompt_tokens

    async def second(self) -> CacheTrialResult:
        """Send the prompt again; return how many of its tokens were cached.

        Raises:
            ProbeError: no usable answer.
        """
        before = await self._counters()
        usage = await self._ask()
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return CacheTrialResult(usage.prompt_tokens, details.cached_tokens)
        if before is None:
            return CacheTrialResult(usage.prompt_tokens, None, None, NO_COUNTER)
        return await self._counted(before, usage.prompt_tokens)

    async def _ask(self) -> _Usage:
        answer = await self._posted()
        try:
            return read_json(answer, _Completion).usage
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProbeError(f"{PATH} answered without usage ({error})") from None

    async def _posted(self) -> bytes:
        """Send the prompt. The forms of the rank that the worker may take are tried until one is not refused."""
        ranks, rank = self._ranks, self._rank
        forms = iter((ranks.form, *ranks.other_forms()) if rank is not None else (ranks.form,))
        form, refusal = next(forms), None
        while True:
            number = ranks.sent(rank, form)
            headers = {} if number is None else {"x-data-parallel-rank": str(number)}
            try:
                answer = await self._client.post_json(
                    self._endpoint, PATH, self._body, headers=headers, timeout_s=self._answer_s
                )
            except RefusedError as error:
                refusal = refusal or error
                following = next(forms, None)
                if error.status not in (400, 422) or following is None:
                    raise refusal from None
                form = following
            else:
                ranks.accepted(rank, form)
                return answer

    async def _counters(self) -> _Counters | None:
        try:
            page = await read_metrics(self._client, self._endpoint)
        except ProbeError:
            return None
        for load in page.loads:
            if load.rank == (self._rank or 0) and load.prefix_queries is not None and load.prefix_hits is not None:
                return _Counters(load.prefix_queries, load.prefix_hits)
        return None

    async def _counted(self, before: _Counters, prompt_tokens: int) -> CacheTrialResult:
        deadline_s = asyncio.get_running_loop().time() + SETTLE_S
        while (after := await self._counters()) is not None:
            queries = after.queries - before.queries
            if queries == prompt_tokens:
                return CacheTrialResult(prompt_tokens, None, after.hits - before.hits)
            if queries > prompt_tokens or asyncio.get_running_loop().time() >= deadline_s:
                return CacheTrialResult(prompt_tokens, None, None, OTHER_TRAFFIC if queries else NO_COUNTER)
            await asyncio.sleep(POLL_S)
        return CacheTrialResult(prompt_tokens, None, None, NO_COUNTER)


def trial_body(model: str, block_tokens: int, max_model_len: int | None) -> bytes:
    """Return a new prompt of at least three blocks, fewer if blocks are very large. Each word is at least two
    tokens."""
    words = min(2 * block_tokens, MOST_WORDS)
    if max_model_len is not None:
        words = max(1, min(words, max_model_len // 10))
    digits = secrets.token_hex(words * _WORD_DIGITS // 2)
    text = " ".join(digits[start : start + _WORD_DIGITS] for start in range(0, len(digits), _WORD_DIGITS))
    return msgspec.json.encode({"model": model, "prompt": text, "max_tokens": 1, "temperature": 0, "stream": False})
