"""Test whether the view of a worker's cache is exact, by sending it the same short prompt twice.

The second response reports how much of the prompt was cached. The residency map, fed by the KV events of the first
prompt, must predict the same number. If the worker does not report cached tokens, its hit counter is read instead. The
test uses completions; for chats, the rendering is compared too (`selftest_rendering`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from backends.vllm.control import ProbeError, WorkerClient
from backends.worker import Endpoint
from policies.view import Residency
from router.placement.fleet.rank_numbers import RankNumbers
from router.residency.prompt import Prompt
from router.residency.residency_map import ResidencyMap
from router.tokenization.body.intake import parse
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.cache_trial import PATH, CacheTrial, CacheTrialResult, trial_body
from router.workers.selftest_rendering import RenderingComparison, compare_rendering

ANSWER_S = 10.0
SETTLE_S = 2.0
"""Maximum wait for the events of a finished request. vLLM sends them at the end of a step."""
POLL_S = 0.02
NO_REPORT = "cached_tokens is not reported (--enable-prompt-tokens-details)"


@dataclass(frozen=True, slots=True)
class SelfTestVerdict:
    """How far a view can be trusted, and why. UNKNOWN: the test had no result.

    `blind` is True if the worker had cached the prompt and its events did not show that. Unless `settled`, a later test
    may find more.
    """

    residency: Residency
    reason: str
    blind: bool = False
    settled: bool = True


@dataclass(frozen=True, slots=True)
class SelfTestTarget:
    """The candidate under test. `rank` is None if the endpoint has one rank; `ranks` learns the form that it takes.

    `no_events` gives a reason if no events come.
    """

    endpoint: Endpoint
    slot: int
    rank: int | None
    model: str
    block_tokens: int
    prefix_caching: bool
    max_model_len: int | None
    no_events: str | None
    ranks: RankNumbers = field(default_factory=RankNumbers)


class SelfTest:
    """One test of one candidate. It never raises, and gives up within about half a minute."""

    def __init__(
        self, client: WorkerClient, residency: ResidencyMap, identity: PromptIdentifier, subject: SelfTestTarget
    ) -> None:
        self._client = client
        self._residency = residency
        self._identity = identity
        self._subject = subject
        self.answered = False
        """Set once both requests were served."""

    async def run(self) -> SelfTestVerdict:
        subject = self._subject
        if not subject.prefix_caching:
            return SelfTestVerdict(Residency.OFF, "prefix caching is disabled on the worker")
        body = trial_body(subject.model, subject.block_tokens, subject.max_model_len)
        try:
            verdict = await self._compare(body)
        except ProbeError as error:
            return SelfTestVerdict(Residency.UNKNOWN, f"the self-test got no answer: {error.reason}", settled=False)
        if verdict.residency is not Residency.EXACT:
            return verdict
        return _with_chats(verdict, await self._rendering())

    async def _rendering(self) -> RenderingComparison:
        subject = self._subject
        return await compare_rendering(
            self._client, self._identity, subject.endpoint, subject.model, subject.block_tokens
        )

    async def _compare(self, body: bytes) -> SelfTestVerdict:
        subject = self._subject
        trial = CacheTrial(
            self._client, subject.endpoint, body, answer_s=ANSWER_S, rank=subject.rank, ranks=subject.ranks
        )
        prompt_tokens = await trial.first()
        if subject.no_events is not None:
            found = await trial.second()
            self.answered = True
            return _without_events(subject.no_events, found, subject.block_tokens)
        prompt = await self._identity.identify(PATH, parse(PATH, body), None)
        predicted = await self._settled(prompt) if prompt is not None else None
        found = await trial.second()
        self.answered = True
        return _with_events(prompt, prompt_tokens, predicted, found)

    async def _settled(self, prompt: Prompt) -> int:
        """Return the predicted tokens once the events of the first request are in, or the wait is over."""
        block_tokens = self._subject.block_tokens
        full = (prompt.tokens - 1) // block_tokens * block_tokens
        deadline_s = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            found = self._residency.match(prompt, [self._subject.slot])[self._subject.slot].tokens
            if found >= full or asyncio.get_running_loop().time() >= deadline_s:
                return found
            await asyncio.sleep(POLL_S)


def _without_events(why: str, found: CacheTrialResult, block_tokens: int) -> SelfTestVerdict:
    """Judge a worker without events. In doubt, assume that it caches prefixes, as vLLM does by default, because that
    error costs little.
    """
    if found.reported is not None:
        return SelfTestVerdict(Residency.APPROXIMATE, why)
    if found.counted:
        return SelfTestVerdict(Residency.APPROXIMATE, f"{why}; {NO_REPORT}, so nothing corrects the view")
    if found.proves_no_caching(block_tokens):
        reason = f"the worker found nothing of a prompt it had just run; {why}; {NO_REPORT}"
        return SelfTestVerdict(Residency.OFF, reason, settled=False)
    unseen = found.why_not or "the test's prompt is shorter than a block"
    reason = f"{why}; {NO_REPORT}; whether it caches prefixes is not known: {unseen}"
    return SelfTestVerdict(Residency.APPROXIMATE, reason, settled=False)


def _with_events(
    prompt: Prompt | None, prompt_tokens: int, predicted: int | None, found: CacheTrialResult
) -> SelfTestVerdict:
    if prompt is None or not prompt.exact or predicted is None:
        return SelfTestVerdict(
            Residency.APPROXIMATE, "the token ids of the model's prompts are unknown: give --model-dir"
        )
    if prompt.tokens != prompt_tokens:
        reason = f"the tokenizer differs: {prompt.tokens} tokens here, {prompt_tokens} on the worker"
        return SelfTestVerdict(Residency.APPROXIMATE, reason, blind=True)
    hits = found.reported if found.reported is not None else found.counted
    if hits is None:
        reason = f"predicted {predicted} of {prompt_tokens} tokens, unconfirmed: {NO_REPORT}; {found.why_not}"
        return SelfTestVerdict(Residency.UNKNOWN, reason, settled=False)
    how = "reported" if found.reported is not None else f"counted by its metrics ({NO_REPORT})"
    agree = Residency.EXACT if hits == predicted else Residency.APPROXIMATE
    reason = f"predicted {predicted} of {prompt_tokens} tokens cached, {hits} {how}"
    return SelfTestVerdict(agree, reason, blind=not predicted and hits > 0)


def _with_chats(exact: SelfTestVerdict, rendering: RenderingComparison) -> SelfTestVerdict:
    if rendering.wrong is not None:
        reason = f"the worker renders chats differently ({rendering.wrong})"
        return SelfTestVerdict(Residency.APPROXIMATE, f"{reason}; {exact.reason}", blind=rendering.basic)
    if rendering.why_not is not None:
        return SelfTestVerdict(Residency.EXACT, f"{exact.reason}; rendering not compared: {rendering.why_not}")
    return SelfTestVerdict(Residency.EXACT, f"{exact.reason}; {rendering.compared} chats rendered alike")
