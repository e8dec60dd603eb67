"""What a replay adds up to: how many choices differ, and what the estimators say of both."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from policies.view import WorkerId
from router.placement.decision_log.log_replay import Replayed
from router.placement.policies.shadow import ttft_s


class Choices(msgspec.Struct):
    """Sums over the choices of one policy.

    `ttft_s` sums predicted times to first token, `cached_tokens` and `prompt_tokens` the tokens of the prompts, `held`
    counts the requests that were held.
    """

    ttft_s: float = 0.0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    held: int = 0


class DifferentChoice(msgspec.Struct, frozen=True):
    """One decision that came out differently. `change_s` is the change of the predicted time to first token."""

    at_s: float
    request_id: str
    recorded: str
    replayed: str
    change_s: float
    change_cached_tokens: int


class Summary(msgspec.Struct):
    """The result of a replay. `elsewhere` counts choices of another worker. `first` has the first differences."""

    decisions: int = 0
    same: int = 0
    elsewhere: int = 0
    recorded: Choices = msgspec.field(default_factory=Choices)
    replayed: Choices = msgspec.field(default_factory=Choices)
    first: list[DifferentChoice] = []

    @property
    def same_share(self) -> float:
        return self.same / self.decisions if self.decisions else 1.0

    def add(self, one: Replayed, shown: int) -> None:
        """Count a decision. Keep it in `first` if it differs and fewer than `shown` are there."""
        self.decisions += 1
        self.same += one.same
        self.elsewhere += one.recorded != one.replayed
        _add(self.recorded, one, one.recorded, held=one.held)
        _add(self.replayed, one, one.replayed, held=one.holds)
        if not one.same and len(self.first) < shown:
            self.first.append(_difference(one))


def summed(replay: Iterable[Replayed], shown: int) -> Summary:
    summary = Summary()
    for one in replay:
        summary.add(one, shown)
    return summary


def _add(choices: Choices, one: Replayed, worker: WorkerId, *, held: bool) -> None:
    view = one.view(worker)
    choices.ttft_s += ttft_s(view)
    choices.cached_tokens += view.cached_tokens
    choices.prompt_tokens += view.cached_tokens + view.uncached_tokens
    choices.held += held


def _difference(one: Replayed) -> DifferentChoice:
    before, after = one.view(one.recorded), one.view(one.replayed)
    return DifferentChoice(
        one.fleet.now_s,
        one.request.id,
        one.recorded,
        one.replayed,
        ttft_s(after) - ttft_s(before),
        after.cached_tokens - before.cached_tokens,
    )
