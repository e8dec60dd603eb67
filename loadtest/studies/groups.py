"""Play the peers' workload in virtual time: ``python -m loadtest.studies.groups [--groups N] [--starts-per-s R ...]``.

48 conversations of 4 turns in N groups share a system prompt of 4,400 tokens per group. Four engine models of
Llama-3.1-8B on an H100 have 65,536 tokens of cache each; rates are for step times without stretch. The output has means
over seeds for `cache_aware`, `round_robin`, and the default policy with and without hot prefix spill. It also has the
default's differences to `cache_aware`, paired by seed, with a 95 % interval.
"""

from __future__ import annotations

import argparse
import random
from array import array
from statistics import fmean
from typing import NamedTuple
from unittest.mock import patch

from backends.engine.profile import load_profile
from loadtest.report.confidence import interval
from loadtest.report.summary import percentile
from loadtest.sim.run import Setting, simulate
from loadtest.sim.sessions import Call, Session
from loadtest.sim.worker import WorkerSpec
from policies.marginal_cost.terms.hot_prefix import HotPrefix
from policies.spec import PolicySpec

PROFILE = load_profile("llama-3.1-8b-h100")
CONVERSATIONS, TURNS, WARM_UP = 48, 4, 32
SYSTEM, OPENING, QUESTION, ANSWER = 4_400, 223, 125, 48
PAUSE_S = 0.5
WITHOUT = "marginal_cost, no hot prefix spill"


class Row(NamedTuple):
    cached_share: float
    ttft_mean_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float


def words(rng: random.Random, count: int) -> array[int]:
    return array("I", (rng.randrange(300, 8_000) for _ in range(count)))


def sessions(seed: int, groups: int, starts_per_s: float) -> list[Session]:
    rng, at_s, played = random.Random(seed), 0.0, []
    for number in range(WARM_UP):
        at_s += rng.expovariate(40)
        played.append(Session(f"warm {number}", at_s, (Call(words(rng, 700), words(rng, 8)),)))
    systems, at_s = [words(rng, SYSTEM) for _ in range(groups)], 5.0
    for number in range(CONVERSATIONS):
        at_s += rng.expovariate(starts_per_s)
        prompt, calls = systems[rng.randrange(groups)] + words(rng, OPENING), []
        for turn in range(TURNS):
            answer = words(rng, ANSWER)
            calls.append(Call(array("I", prompt), answer, rng.expovariate(1 / PAUSE_S) if turn else 0.0))
            prompt = prompt + answer + words(rng, QUESTION)
        played.append(Session(f"played {number}", at_s, tuple(calls)))
    return played


def run(policy: str, seed: int, groups: int, starts_per_s: float) -> Row:
    workers = tuple(WorkerSpec(PROFILE, num_blocks=4_096) for _ in range(4))
    setting = Setting(workers=workers, policy=PolicySpec(policy), seed=seed)
    played = simulate(setting, sessions(seed, groups, starts_per_s)).outcomes
    outcomes = [outcome for outcome in played if outcome.session.startswith("played")]
    ttft_ms = [outcome.ttft_s * 1e3 for outcome in outcomes if outcome.ttft_s is not None]
    return Row(
        sum(outcome.cached_tokens or 0 for outcome in outcomes) / sum(outcome.prompt_tokens for outcome in outcomes),
        fmean(ttft_ms),
        percentile(ttft_ms, 0.9),
        percentile(ttft_ms, 0.99),
        fmean(outcome.tpot_s * 1e3 for outcome in outcomes if outcome.tpot_s is not None),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--starts-per-s", type=float, nargs="+", default=[8.0, 24.0])
    parser.add_argument("--seeds", type=int, default=12)
    args = parser.parse_args()
    for rate in args.starts_per_s:
        print(f"\n{args.groups} groups, {rate:g} starts/s, {args.seeds} seeds: {', '.join(Row._fields)}")
        rows = {}
        for policy in ("round_robin", "cache_aware", "marginal_cost"):
            rows[policy] = [run(policy, seed, args.groups, rate) for seed in range(args.seeds)]
        with patch.object(HotPrefix, "price", lambda term, request, fleet: ()):
            rows[WITHOUT] = [run("marginal_cost", seed, args.groups, rate) for seed in range(args.seeds)]
        for policy, results in rows.items():
            print(f"{policy:34}", *(f"{fmean(column):8.3f}" for column in zip(*results, strict=True)))
        for policy in ("marginal_cost", WITHOUT):
            for field in ("cached_share", "ttft_mean_ms"):
                pairs = zip(rows[policy], rows["cache_aware"], strict=True)
                found = interval([getattr(ours, field) - getattr(theirs, field) for ours, theirs in pairs])
                print(f"{policy} minus cache_aware, {field}: {found.mean:+.3f} ± {found.half:.3f}")


if __name__ == "__main__":
    main()
