"""From runs to figures: routing quality per seed, and the error of predictions over all seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.approximate.contenders import Contender
from loadtest.report.summary import percentile
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.run import Run


@dataclass(frozen=True, slots=True)
class Score:
    """One view's run with one seed, over the calls that the gateway placed and that were answered to the end.

    `errors_tokens` are predicted minus found tokens, one per call; empty if the view predicts nothing. `prompt_tokens`
    and `cached_tokens` are sums.
    """

    seed: int
    calls: int
    prompt_tokens: int
    cached_tokens: int
    ttft_mean_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    busy_share: float
    errors_tokens: tuple[int, ...]

    @property
    def cached_share(self) -> float:
        """Cached prompt tokens divided by all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Errors:
    """Distribution of predicted minus found tokens; shares of calls without error and with at most one block."""

    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    equal: float
    within_a_block: float


@dataclass(frozen=True, slots=True)
class Showing:
    """A view and its scores, one per seed."""

    contender: Contender
    scores: tuple[Score, ...]

    @property
    def ttft_mean_ms(self) -> float:
        """Mean over the seeds."""
        return fmean(score.ttft_mean_ms for score in self.scores)


def score(run: Run, seed: int) -> Score:
    """Compute the score of one run."""
    answered = [outcome for outcome in run.outcomes if not outcome.direct and outcome.ending is Ending.FINISHED]
    ttfts_ms = [outcome.ttft_s * 1e3 for outcome in answered if outcome.ttft_s is not None]
    busy_s = sum(worker["busy_s"] for worker in run.workers)
    return Score(
        seed=seed,
        calls=len(answered),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in answered),
        cached_tokens=sum(outcome.cached_tokens or 0 for outcome in answered),
        ttft_mean_ms=fmean(ttfts_ms) if ttfts_ms else 0.0,
        ttft_p90_ms=percentile(ttfts_ms, 0.9),
        ttft_p99_ms=percentile(ttfts_ms, 0.99),
        busy_share=busy_s / (run.virtual_s * len(run.workers)) if run.virtual_s else 0.0,
        errors_tokens=tuple(_errors(answered)),
    )


def _errors(outcomes: Sequence[Outcome]) -> list[int]:
    return [outcome.error_tokens for outcome in outcomes if outcome.error_tokens is not None]


def errors(scores: Sequence[Score], block_tokens: int) -> Errors | None:
    """Return the errors of all seeds' calls together; None for a view that predicts nothing."""
    found = [error for score in scores for error in score.errors_tokens]
    if not found:
        return None
    return Errors(
        mean=fmean(found),
        p10=percentile(found, 0.1),
        p50=percentile(found, 0.5),
        p90=percentile(found, 0.9),
        p99=percentile(found, 0.99),
        equal=sum(error == 0 for error in found) / len(found),
        within_a_block=sum(abs(error) <= block_tokens for error in found) / len(found),
    )
