"""What is told of a run: each measure for all its calls, and for each kind of call."""

from __future__ import annotations

import msgspec

QUANTILES = 100


class Figures(msgspec.Struct, frozen=True):
    """Measures of some calls of one run. Times are in milliseconds, of those that were answered to the end; TTFT is
    also of those whose client left: where no token had come, what they had waited by then.

    `goodput_share` is the share of all calls that met the SLO, `goodput_per_s` how many did per second of arrivals;
    calls turned away, and those whose client left, met nothing. `itl_p99_ms` is over all gaps between two tokens of
    one answer. `hit_share` is cached over all prompt tokens, `reuse_share` cached over reusable ones: those that a
    cache without end would have had. Regret is `regret`'s; None where it was not asked for.
    """

    calls: int
    answered: int
    rejected: int
    timed_out: int
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    itl_p99_ms: float
    e2e_mean_ms: float
    e2e_p50_ms: float
    e2e_p99_ms: float
    goodput_share: float
    goodput_per_s: float
    prompt_tokens: int
    hit_share: float
    reuse_share: float
    regret_mean_ms: float | None = None
    regret_p99_ms: float | None = None


class Measures(msgspec.Struct, frozen=True):
    """One run, the same every time: `all` its measured calls, `kinds` of them, and what only a fleet has.

    `amplification` is prefill tokens executed over those that a cache without end would have left to execute;
    `imbalance` those of the busiest worker over the mean; both, and `preemptions`, from the end of the warm-up on.
    `arrivals_per_s` is the rate at which measured calls were sent, `ttft_quantiles_ms` the 0th to 100th percentile.
    """

    all: Figures
    kinds: dict[str, Figures]
    amplification: float
    imbalance: float
    preemptions: int
    arrivals_per_s: float
    virtual_s: float
    ttft_quantiles_ms: list[float]


class Measured(msgspec.Struct, frozen=True):
    """What this machine's clocks said of a run: a decision's CPU time, lookup included and hashing not, and how fast
    the run was: `speedup` is virtual seconds per CPU second."""

    decision_mean_us: float
    decision_p50_us: float
    decision_p99_us: float
    wall_s: float
    cpu_s: float
    speedup: float
