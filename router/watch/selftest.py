"""Is a worker's view exact? Ask the worker itself: the same short prompt twice.

The second answer reports how much of the prompt was found in the cache; the residency map, fed by the KV events of
the first, has to say the same beforehand. Where the worker does not report it, its hit counter is read instead. That
is a completion; chats have to be rendered alike as well (`selftest_rendering`).
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Protocol

import msgspec

from backends.vllm.control import ProbeError, WorkerClient
from backends.vllm.probe import read_metrics
from backends.worker import Endpoint
from policies.view import Residency
from router.prefix.prompt import Prompt
from router.prefix.residency import ResidencyMap
from router.tokens.intake import ParsedBody, parse
from router.watch.selftest_rendering import Rendering, compare_rendering

PATH = "/v1/completions"
ANSWER_S = 10.0
SETTLE_S = 2.0
"""Longest wait for the events of a finished request; vLLM sends them at the end of its step."""
POLL_S = 0.02
NO_REPORT = "cached_tokens is not reported (--enable-prompt-tokens-details)"


class Identifying(Protocol):
    """Gives a request the identity that the gateway would give it: `router.tokens.identity.Identity`."""

    async def identify(self, path: str, parsed: ParsedBody, adapter: str | None) -> Prompt | None:
        """The prompt's identity, None where there is none. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a view can be trusted, and why. UNKNOWN: the test itself came to nothing.

    `blind`: the worker had the prompt in its cache, and its events did not help to know that.
    """

    residency: Residency
    reason: str
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """The candidate under test. `rank` is None where its endpoint has one rank; `no_events`: why none come, if so."""

    endpoint: Endpoint
    slot: int
    rank: int | None
    model: str
    block_tokens: int
    prefix_caching: bool
    max_model_len: int | None
    no_events: str | None


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


class SelfTest:
    """One test of one candidate. Never raises; gives up within about half a minute."""

    def __init__(self, client: WorkerClient, residency: ResidencyMap, identity: Identifying, subject: Subject) -> None:
        self._client = client
        self._residency = residency
        self._identity = identity
        self._subject = subject
        self.answered = False
        """Both requests were served."""

    async def run(self) -> Verdict:
        """Ask twice and compare."""
        subject = self._subject
        if not subject.prefix_caching:
            return Verdict(Residency.OFF, "prefix caching is disabled on the worker")
        body = _body(subject)
        try:
            verdict = await self._compare(body)
        except ProbeError as error:
            return Verdict(Residency.UNKNOWN, f"the self-test got no answer: {error.reason}")
        if verdict.residency is not Residency.EXACT:
            return verdict
        return _with_chats(verdict, await self._rendering())

    async def _rendering(self) -> Rendering:
        subject = self._subject
        return await compare_rendering(
            self._client, self._identity, subject.endpoint, subject.model, subject.block_tokens
        )

    async def _compare(self, body: bytes) -> Verdict:
        prompt_tokens = (await self._ask(body)).prompt_tokens
        prompt = await self._identity.identify(PATH, parse(PATH, body), None)
        predicted = await self._settled(prompt) if prompt is not None and self._subject.no_events is None else None
        before = await self._counters()
        details = (await self._ask(body)).prompt_tokens_details
        self.answered = True
        reported = details.cached_tokens if details is not None else None
        counted = await self._counted(before, prompt_tokens) if reported is None else None
        if self._subject.no_events is not None:
            return _without_events(self._subject.no_events, reported, counted)
        return _with_events(prompt, prompt_tokens, predicted, reported, counted)

    async def _ask(self, body: bytes) -> _Usage:
        headers = {} if self._subject.rank is None else {"x-data-parallel-rank": str(self._subject.rank)}
        answer = await self._client.post_json(self._subject.endpoint, PATH, body, headers=headers, timeout_s=ANSWER_S)
        try:
            return msgspec.json.decode(answer, type=_Completion).usage
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProbeError(f"{PATH} answered without usage ({error})") from None

    async def _settled(self, prompt: Prompt) -> int:
        """Tokens the view holds once the events of the first request are in, or the wait is over."""
        block_tokens = self._subject.block_tokens
        full = (prompt.tokens - 1) // block_tokens * block_tokens
        deadline_s = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            found = self._residency.match(prompt, [self._subject.slot])[self._subject.slot].tokens
            if found >= full or asyncio.get_running_loop().time() >= deadline_s:
                return found
            await asyncio.sleep(POLL_S)

    async def _counters(self) -> _Counters | None:
        try:
            page = await read_metrics(self._client, self._subject.endpoint)
        except ProbeError:
            return None
        for load in page.loads:
            if load.rank == (self._subject.rank or 0) and load.prefix_queries is not None:
                return _Counters(load.prefix_queries, load.prefix_hits or 0)
        return None

    async def _counted(self, before: _Counters | None, prompt_tokens: int) -> int | None:
        """Hits of the second request by the worker's counters; None if other traffic was counted along with it."""
        deadline_s = asyncio.get_running_loop().time() + SETTLE_S
        while before is not None and (after := await self._counters()) is not None:
            queries = after.queries - before.queries
            if queries == prompt_tokens:
                return after.hits - before.hits
            if queries > prompt_tokens or asyncio.get_running_loop().time() >= deadline_s:
                return None
            await asyncio.sleep(POLL_S)
        return None


def _body(subject: Subject) -> bytes:
    """A prompt nobody has sent before, of three blocks or more: each of its words is at least two tokens."""
    words = 2 * subject.block_tokens
    if subject.max_model_len is not None:
        words = min(words, subject.max_model_len // 10)
    text = " ".join(secrets.token_hex(4) for _ in range(max(1, words)))
    return msgspec.json.encode(
        {"model": subject.model, "prompt": text, "max_tokens": 1, "temperature": 0, "stream": False}
    )


def _without_events(why: str, reported: int | None, counted: int | None) -> Verdict:
    if reported is not None:
        return Verdict(Residency.APPROXIMATE, why)
    if counted:
        return Verdict(Residency.APPROXIMATE, f"{why}; {NO_REPORT}, so nothing corrects the view")
    if counted == 0:
        return Verdict(Residency.OFF, f"the worker found nothing of a prompt it had just run; {why}; {NO_REPORT}")
    return Verdict(Residency.OFF, f"{why}; {NO_REPORT}; and its hit counter cannot be read")


def _with_events(
    prompt: Prompt | None, prompt_tokens: int, predicted: int | None, reported: int | None, counted: int | None
) -> Verdict:
    if prompt is None or not prompt.exact or predicted is None:
        return Verdict(Residency.APPROXIMATE, "token ids of the model's prompts are not to be had: give --model-dir")
    if prompt.tokens != prompt_tokens:
        reason = f"the tokenizer differs: {prompt.tokens} tokens here, {prompt_tokens} on the worker"
        return Verdict(Residency.APPROXIMATE, reason, blind=True)
    found = reported if reported is not None else counted
    if found is None:
        reason = f"predicted {predicted} of {prompt_tokens} tokens, unconfirmed: {NO_REPORT}"
        return Verdict(Residency.UNKNOWN, reason)
    how = "reported" if reported is not None else f"counted by its metrics ({NO_REPORT})"
    agree = Residency.EXACT if found == predicted else Residency.APPROXIMATE
    reason = f"predicted {predicted} of {prompt_tokens} tokens cached, {found} {how}"
    return Verdict(agree, reason, blind=not predicted and found > 0)


def _with_chats(exact: Verdict, rendering: Rendering) -> Verdict:
    """Completions are known exactly: are chats?"""
    if rendering.wrong is not None:
        reason = f"the worker renders chats differently ({rendering.wrong})"
        return Verdict(Residency.APPROXIMATE, f"{reason}; {exact.reason}", blind=rendering.basic)
    if rendering.why_not is not None:
        return Verdict(Residency.EXACT, f"{exact.reason}; rendering not compared: {rendering.why_not}")
    return Verdict(Residency.EXACT, f"{exact.reason}; {rendering.compared} chats rendered alike")
