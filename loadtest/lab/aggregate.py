"""From a run's outcomes to its measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from statistics import fmean
from types import MappingProxyType

from loadtest.lab.cell import Slo
from loadtest.lab.measures import Figures, Measures, Pressure
from loadtest.report.summary import percentile
from loadtest.sim.outcome import Ending, Outcome


@dataclass(frozen=True, slots=True)
class Asked:
    """Facts of a call that are known before the run: its kind, and the tokens that an endless cache would hold."""

    kind: str
    reusable_tokens: int


@dataclass(frozen=True, slots=True)
class Played:
    """The measured part of a run. `asked` is keyed by the outcomes' ids.

    `executed_tokens` and `preemptions` have one value per worker, counted from the end of the warm-up.
    """

    outcomes: Sequence[Outcome]
    asked: Mapping[str, Asked]
    executed_tokens: Sequence[int]
    preemptions: Sequence[int]
    from_s: float
    until_s: float
    virtual_s: float
    pressure: Pressure = field(default_factory=Pressure)


class Miss(Enum):
    """Why a call missed the service level. The first of these reasons counts."""

    FIRST_TOKEN = "its first token came late or never"
    TOKENS = "its tokens came too slowly"
    END = "its end came late or never"


def aggregate(played: Played, slo: Slo, slos: Mapping[str, Slo] = MappingProxyType({})) -> Measures:
    """Return the measures; `slos` are the service levels of kinds that have their own."""
    kinds: dict[str, list[Outcome]] = {}
    for outcome in played.outcomes:
        kinds.setdefault(played.asked[outcome.id].kind, []).append(outcome)
    span_s = max(played.until_s - played.from_s, 1e-9)

    def why(one: Outcome) -> Miss | None:
        return miss(one, slos.get(played.asked[one.id].kind, slo))

    by_kind = {kind: _figures(played, kinds[kind], why, span_s) for kind in sorted(kinds)}
    useful_tokens = sum(one.prompt_tokens - played.asked[one.id].reusable_tokens for one in played.outcomes)
    (every,) = by_kind.values() if len(by_kind) == 1 else [_figures(played, played.outcomes, why, span_s)]
    return Measures(
        all=every,
        kinds=by_kind,
        amplification=_ratio(sum(played.executed_tokens), useful_tokens),
        imbalance=_ratio(max(played.executed_tokens), fmean(played.executed_tokens)),
        preemptions=sum(played.preemptions),
        arrivals_per_s=len(played.outcomes) / span_s,
        virtual_s=played.virtual_s,
        pressure=played.pressure,
    )


def _figures(
    played: Played, outcomes: Sequence[Outcome], why: Callable[[Outcome], Miss | None], span_s: float
) -> Figures:
    answered = [one for one in outcomes if one.ending is Ending.FINISHED]
    ttfts_ms = sorted(_ttfts_ms(outcomes))
    tpots_ms = sorted(one.tpot_s * 1e3 for one in answered if one.tpot_s is not None)
    whole_ms = sorted((one.ended_s - one.sent_s) * 1e3 for one in answered)
    gaps_s = list(chain.from_iterable(one.gaps_s() for one in answered))
    misses = Counter(map(why, outcomes))
    met = misses[None]
    cached = sum(one.cached_tokens or 0 for one in outcomes)
    prompts = sum(one.prompt_tokens for one in outcomes)
    return Figures(
        calls=len(outcomes),
        answered=len(answered),
        rejected=sum(one.ending is Ending.REJECTED for one in outcomes),
        timed_out=sum(one.ending is Ending.LEFT for one in outcomes),
        ttft_mean_ms=_mean(ttfts_ms),
        ttft_p50_ms=percentile(ttfts_ms, 0.5),
        ttft_p90_ms=percentile(ttfts_ms, 0.9),
        ttft_p99_ms=percentile(ttfts_ms, 0.99),
        tpot_mean_ms=_mean(tpots_ms),
        itl_p99_ms=percentile(gaps_s, 0.99) * 1e3,
        e2e_mean_ms=_mean(whole_ms),
        goodput_share=_ratio(met, len(outcomes)),
        goodput_per_s=met / span_s,
        prompt_tokens=prompts,
        hit_share=_ratio(cached, prompts),
        reuse_share=_ratio(cached, sum(played.asked[one.id].reusable_tokens for one in outcomes)),
        handed_over_share=_ratio(sum(one.prefilled_by is not None for one in outcomes), len(outcomes)),
        late_first_tokens=misses[Miss.FIRST_TOKEN],
        slow_answers=misses[Miss.TOKENS],
        late_ends=misses[Miss.END],
    )


def miss(outcome: Outcome, slo: Slo) -> Miss | None:
    """Return why a call missed the service level, None if it met it.

    An answer of one token has no time per token to miss.
    """
    rejected = outcome.ending is Ending.REJECTED
    if rejected or outcome.ttft_s is None or outcome.ttft_s * 1e3 > slo.ttft_ms:
        return Miss.FIRST_TOKEN
    if outcome.tpot_s is not None and outcome.tpot_s * 1e3 > slo.tpot_ms:
        return Miss.TOKENS
    late = (outcome.ended_s - outcome.sent_s) * 1e3 > slo.e2e_ms
    return Miss.END if late or outcome.ending is Ending.LEFT else None


def _ttfts_ms(outcomes: Iterable[Outcome]) -> list[float]:
    """Return the TTFT of all calls that were not rejected.

    A call whose client left without a token counts with the time waited, the least that its TTFT would have been.
    Otherwise a rule would look better if it starved the calls that it serves worst.
    """
    return [
        (outcome.ended_s - outcome.sent_s if outcome.ttft_s is None else outcome.ttft_s) * 1e3
        for outcome in outcomes
        if outcome.ending is not Ending.REJECTED
    ]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
