"""What was measured in a period: sums that add up over minutes and over processes.

Not compiled, because msgspec decodes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from operator import add
from typing import Any

import msgspec

from backends.vllm.histogram_bounds import ITL_S, TTFT_S
from router.telemetry.histogram import OUTPUT_TOKENS, PROMPT_TOKENS, empty

_PROMPTS = len(PROMPT_TOKENS) + 1
TURNS = 8
MIN_REQUESTS = 50
"""Requests, tokens or reports below which a check says that it has seen too little."""
LONG_PROMPT_TOKENS = 4_096
"""Tokens to prefill from which a prompt counts as long."""
"""Turns that are counted on their own. The last one stands for all later ones."""


class Moved(StrEnum):
    """Why a turn of a session went to another worker than the turn before."""

    UNAVAILABLE = "unavailable"
    """The earlier worker took no requests."""
    CACHE_LOST = "cache_lost"
    """The earlier worker had no more of the prompt cached than the new one."""
    NOT_KNOWN = "not_known"
    """It was not known what the earlier worker had cached."""
    COST = "cost"
    """The earlier worker had more of the prompt cached, and the policy preferred another, for its load or otherwise."""


class PromptsMeasured(msgspec.Struct):
    """Requests of one prompt length. `ttft` counts their times to first token in buckets of `TTFT_S`.

    `requests` have ended; those whose first token was seen have a `ttft_s`. `wait_s` is the part of it before their own
    prefill, in the gateway and on the worker that computed the prompt. Pulled prompts have no `wait_s`: the transfer
    takes a part of that time.
    """

    requests: int = 0
    ttft: list[int] = msgspec.field(default_factory=lambda: empty(TTFT_S))
    ttft_s: float = 0.0
    wait_s: float = 0.0


class WorkMeasured(msgspec.Struct):
    """The prefills and the answers of one worker, for the plan of its role.

    `prefills` are prompts that it computed. `timed` of them have an estimate: `prefill_s` is the sum of their times and
    `prefill_square_s2` that of the squares. `handed_s` is the part of `prefill_s` that was for other workers.
    `wait_s` is the time until the first token less the own prefill, over `waits` prefills. Of a prompt whose start was
    pulled, the prefill is that of the rest, and its time until the first token is no wait. `answers` have `gaps`
    between their tokens; `decode_s` is the time of `seen_gaps` of them. `context_gaps` is the sum over gaps of the
    context, and `step_gaps_s` that of the learned growth of a step per context token, over `learned_gaps`.
    """

    prefills: int = 0
    timed: int = 0
    prompt_tokens: int = 0
    prefill_s: float = 0.0
    prefill_square_s2: float = 0.0
    handed_s: float = 0.0
    waits: int = 0
    wait_s: float = 0.0
    answers: int = 0
    gaps: int = 0
    seen_gaps: int = 0
    decode_s: float = 0.0
    context_gaps: float = 0.0
    learned_gaps: int = 0
    step_gaps_s: float = 0.0


class WorkerMeasured(msgspec.Struct):
    """One worker. `alone` and `beside` count gaps between tokens in buckets of `ITL_S`, sampled, without and with a
    long prompt in prefill there.

    `ttft_s` is the sum over `first_tokens`. `cached_tokens` of `prompt_tokens` were found in the cache.
    `kv_usage`, `running` and `waiting` are sums over `reports`, and `utilisation` is the sum over `requests`.
    `earlier_tokens` are those of the earlier turns of sessions that came back; `evicted_tokens` of them were gone.
    """

    alone: list[int] = msgspec.field(default_factory=lambda: empty(ITL_S))
    beside: list[int] = msgspec.field(default_factory=lambda: empty(ITL_S))
    reports: int = 0
    kv_usage: float = 0.0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    requests: int = 0
    first_tokens: int = 0
    ttft_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    utilisation: float = 0.0
    earlier_tokens: int = 0
    evicted_tokens: int = 0
    work: WorkMeasured = msgspec.field(default_factory=WorkMeasured)


class TurnMeasured(msgspec.Struct):
    """The requests that are a certain turn of their session. `earlier_tokens` are the prompts of the turns before, and
    `reused_tokens` the part of them that was cached."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    earlier_tokens: int = 0
    reused_tokens: int = 0
    first_tokens: int = 0
    ttft_s: float = 0.0


class Measured(msgspec.Struct):
    """All that was measured. `levels` are the streams that met and missed a service level, by route and target."""

    seconds: float = 0.0
    prompts: list[PromptsMeasured] = msgspec.field(default_factory=lambda: [PromptsMeasured() for _ in range(_PROMPTS)])
    outputs: list[int] = msgspec.field(default_factory=lambda: empty(OUTPUT_TOKENS))
    workers: dict[str, WorkerMeasured] = {}
    turns: list[TurnMeasured] = msgspec.field(default_factory=lambda: [TurnMeasured() for _ in range(TURNS)])
    stayed: int = 0
    moved: dict[Moved, int] = {}
    levels: dict[tuple[str, str], list[int]] = {}

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.prompts)


def over_time(parts: Iterable[Measured]) -> Measured:
    """Return the sum of several periods of one process."""
    return _sum(parts, add)


def over_processes(parts: Iterable[Measured]) -> Measured:
    """Return the sum of several processes in one period. All read the same counters of the workers."""
    return _sum(parts, max)


def _sum(parts: Iterable[Measured], same: Callable[[Any, Any], Any]) -> Measured:
    whole = Measured()
    for part in parts:
        whole.seconds = same(whole.seconds, part.seconds)
        _add_workers(whole.workers, part.workers, same)
        for name in ("prompts", "turns"):
            for mine, theirs in zip(getattr(whole, name), getattr(part, name), strict=True):
                add_fields(mine, theirs)
        whole.outputs = _added(whole.outputs, part.outputs)
        whole.stayed += part.stayed
        for why, number in part.moved.items():
            whole.moved[why] = whole.moved.get(why, 0) + number
        for level, counts in part.levels.items():
            whole.levels[level] = _added(whole.levels.get(level, [0, 0]), counts)
    return whole


def _add_workers(
    mine: dict[str, WorkerMeasured], theirs: dict[str, WorkerMeasured], same: Callable[[Any, Any], Any]
) -> None:
    """Add field by field by name: there may be thousands of workers and minutes."""
    for name, other in theirs.items():
        one = mine.get(name)
        if one is None:
            mine[name] = one = WorkerMeasured()
        one.alone, one.beside = _added(one.alone, other.alone), _added(one.beside, other.beside)
        one.reports += other.reports
        one.kv_usage += other.kv_usage
        one.running += other.running
        one.waiting += other.waiting
        one.preemptions = same(one.preemptions, other.preemptions)
        one.requests += other.requests
        one.first_tokens += other.first_tokens
        one.ttft_s += other.ttft_s
        one.prompt_tokens += other.prompt_tokens
        one.cached_tokens += other.cached_tokens
        one.utilisation += other.utilisation
        one.earlier_tokens += other.earlier_tokens
        one.evicted_tokens += other.evicted_tokens
        if other.work.prefills or other.work.answers:
            add_fields(one.work, other.work)


def add_fields(mine: msgspec.Struct, theirs: msgspec.Struct) -> None:
    """Add every field of `theirs` to `mine`: numbers, and lists of counts of one length."""
    for name in mine.__struct_fields__:
        one, other = getattr(mine, name), getattr(theirs, name)
        setattr(mine, name, _added(one, other) if isinstance(one, list) else one + other)


def _added(counts: list[int], others: list[int]) -> list[int]:
    return list(map(add, counts, others))
