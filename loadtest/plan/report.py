"""The plan as tables, and as JSON whose keys have their units. Where `vllm bench serve` has a key, it is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.console import Console

from backends.engine.profile import Profile
from loadtest.lab.cell import Slo, slos_of
from loadtest.plan.hours import HourNeed, mean_workers
from loadtest.plan.sizing import Size
from loadtest.plan.traffic import Piece, Traffic
from loadtest.plan.trials import Goal, Trial, interval
from loadtest.report.sheet import Sheet, print_sheet
from loadtest.report.verdict import Answer

HOURS_PER_DAY = 24
NOTE = "in the busiest window; per hour, per day: prices; limit: what makes calls miss with one worker fewer"
FLEETS = ("rule", "workers", "profile", "roles", "per hour", "per day", "verdict", "attained", "cached", "limit")
TIMES = ("TTFT mean, ms", "TTFT p99, ms", "TPOT, ms")
COUNTS = ("workers", "seeds", "verdict", "attained", "95 % interval", "cached", *TIMES)
CLASSES = ("class", "calls", "verdict", "attained", "95 % interval", "refused", *TIMES)
WORDS = {"MET": "met", "NOT_MET": "not met", "UNDECIDED": "undecided"}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found. `best` is the cheapest fleet of the first rule that holds, None if none does.

    `profiles` are those of the candidates.
    `peak_hour` has its trials on the peak hour, with more workers until one holds. `if_wrong` and `by_hour` are also
    for it.
    """

    traffic: Traffic
    goal: Goal
    profiles: Sequence[Profile]
    sizes: Sequence[Size]
    best: Size | None
    peak_hour: Sequence[Trial]
    if_wrong: Mapping[float, int | None]
    by_hour: Sequence[HourNeed]

    @property
    def workers(self) -> int | None:
        """The workers that hold in the busiest window and in the peak hour; None if none do."""
        if self.best is None:
            return None
        if not self.peak_hour:
            return self.best.workers
        last = self.peak_hour[-1]
        return last.shape.workers if last.reached >= self.goal.share else None


def show(console: Console, report: Report) -> None:
    for line in _head(report):
        console.print(line, highlight=False, markup=False)
    for sheet in _sheets(report):
        print_sheet(console, sheet)
    for line in _answer(report):
        console.print(line, highlight=False, markup=False)


def _head(report: Report) -> Iterator[str]:
    traffic, goal = report.traffic, report.goal
    grown = "" if goal.growth == 1.0 else f", {goal.growth:g} times as fast"
    yield (
        f"{traffic.source}: {traffic.calls:,} calls in {_span(traffic.span_s)},"
        f" {traffic.calls / traffic.span_s:.2f} per second{grown}."
    )
    for who, slo in levels(goal).items():
        yield f"{goal.share:.1%} of all calls{who}: {limits(slo)}. Errors and refusals are misses."
    for profile in report.profiles:
        if made_on := fingerprint(profile):
            yield f"{profile.name} was calibrated on: {', '.join(f'{key} {value}' for key, value in made_on.items())}."
    yield f"Simulated: the busiest {_piece(traffic.busiest)}"
    if traffic.peak is not None:
        yield f"           the peak hour in full with one seed, {_piece(traffic.peak)}"
    if report.by_hour:
        sampled = [one.hour.sample for one in report.by_hour if one.simulated]
        yield (
            f"           the busiest {_span(sampled[0].length_s)} of {len(sampled)} of {len(report.by_hour)} hours with"
            f" one seed: {sum(one.calls for one in sampled):,} calls. An hour between two of one size has that size."
        )


def levels(goal: Goal) -> dict[str, Slo]:
    """Return the service level of all calls, or of those of each class."""
    own = slos_of(goal.classes)
    return {f" of class {one.name}": own.get(one.name, goal.slo) for one in goal.classes} or {"": goal.slo}


def limits(slo: Slo) -> str:
    named = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("E2E", slo.e2e_ms))
    return ", ".join(f"{name} at most {limit:g} ms" for name, limit in named if limit < float("inf")) or "an answer"


def fingerprint(profile: Profile) -> dict[str, Any]:
    """Return the known fields of a calibrated profile's fingerprint; none for a packaged one."""
    made_on = {} if profile.fingerprint is None else asdict(profile.fingerprint)
    return {name: value for name, value in made_on.items() if value is not None}


def _span(span_s: float) -> str:
    return f"{span_s / 3600:.1f} h" if span_s >= 3600 else f"{span_s / 60:.3g} min"


def _piece(piece: Piece) -> str:
    warm = f" after {_span(piece.warm_up_s)} of warm-up" if piece.warm_up_s else ""
    return f"{_span(piece.length_s)} from {_span(piece.start_s)} on{warm}: {piece.calls:,} calls"


def _sheets(report: Report) -> Iterator[Sheet]:
    yield Sheet("fleets", FLEETS, tuple(_row(size) for size in report.sizes), NOTE)
    best = report.best
    if best is None:
        return
    counts = tuple(_tried(trial) for trial in best.trials.values())
    yield Sheet(f"{best.fleet.shape.policy} on {best.fleet.shape.profile}, by workers", COUNTS, counts)
    if best.fleet.classes:
        yield Sheet(f"classes with {best.workers} workers", CLASSES, tuple(_classes(best.fleet)))
    if report.by_hour:
        rows = tuple(
            (
                _span(one.hour.start_s),
                f"{one.hour.calls:,}",
                _or_more(one.workers, report.workers or 0),
                "yes" if one.simulated else "",
            )
            for one in report.by_hour
        )
        yield Sheet("by hour of the trace", ("from", "calls", "workers", "simulated"), rows)


def _row(size: Size) -> tuple[str, ...]:
    trial, price = size.fleet, size.cost_per_hour
    costs = ("", "") if price is None else (f"{price:,.2f}", f"{price * HOURS_PER_DAY:,.2f}")
    first = trial.shape.prefill_workers
    roles = "any" if first is None else f"{first} prefill, {size.workers - first} decode"
    verdict = WORDS[trial.verdict.answer.name]
    return (
        trial.shape.policy,
        _count(size),
        trial.shape.profile,
        roles,
        *costs,
        verdict,
        f"{trial.attained.share:.4f}",
        f"{_cached(trial):.3f}",
        size.limit or "",
    )


def _tried(trial: Trial) -> tuple[str, ...]:
    reached = trial.attained
    return (
        str(trial.shape.workers),
        str(len(trial.measures)),
        WORDS[trial.verdict.answer.name],
        f"{reached.share:.4f}",
        f"{reached.low:.4f} to {reached.high:.4f}",
        f"{_cached(trial):.3f}",
        f"{trial.mean(lambda one: one.all.ttft_mean_ms):,.0f}",
        f"{trial.mean(lambda one: one.all.ttft_p99_ms):,.0f}",
        f"{trial.mean(lambda one: one.all.tpot_mean_ms):,.1f}",
    )


def _classes(trial: Trial) -> Iterator[tuple[str, ...]]:
    for name, one in trial.classes.items():
        reached = interval(one)
        figures = [seed.kinds[name] for seed in trial.measures if name in seed.kinds]
        yield (
            name,
            f"{one.total:,}",
            WORDS[one.answer.name],
            f"{reached.share:.4f}",
            f"{reached.low:.4f} to {reached.high:.4f}",
            f"{sum(seed.rejected for seed in figures):,}",
            f"{fmean(seed.ttft_mean_ms for seed in figures):,.0f}",
            f"{fmean(seed.ttft_p99_ms for seed in figures):,.0f}",
            f"{fmean(seed.tpot_mean_ms for seed in figures):,.1f}",
        )


def _count(size: Size) -> str:
    if size.met:
        return str(size.workers)
    return f"{size.workers}?" if size.fleet.verdict.answer is Answer.UNDECIDED else f"> {size.workers}"


def _cached(trial: Trial) -> float:
    return trial.mean(lambda one: one.all.hit_share)


def _or_more(needed: int | None, most: int) -> str:
    return f"> {most}" if needed is None else str(needed)


def _answer(report: Report) -> Iterator[str]:
    best, workers = report.best, report.workers
    if best is None:
        yield "No fleet of the first rule holds the service level; the table says how near the largest one comes."
        return
    for trial in report.peak_hour:
        yield f"The peak hour in full: {trial.attained.share:.4f} of its calls with {trial.shape.workers} workers."
    if workers is None:
        yield "No fleet holds it in the peak hour."
        return
    price = best.kind.candidate.price_per_hour
    cost = (
        "" if price is None else f" for {price * workers:,.2f} per hour, {price * workers * HOURS_PER_DAY:,.2f} per day"
    )
    yield f"Take {(report.peak_hour or [best.fleet])[-1].shape}{cost}."
    for size in report.sizes:
        if size.kind.candidate == best.kind.candidate and size.kind.policy != best.kind.policy:
            other = size.fleet.shape.policy
            yield f"{other} needs {_count(size)} in the busiest window, where this rule needs {best.workers}."
    if best.one_lost is not None:
        yield f"With one worker lost, {best.one_lost.attained.share:.2%} of the calls of the busiest window are good."
    fleet = best.fleet
    yield (
        f"In use there: {fleet.mean(lambda one: one.pressure.kv_share):.0%} of the KV caches,"
        f" {fleet.mean(lambda one: one.pressure.batch_share):.0%} of the batches."
    )
    if report.if_wrong:
        most = best.kind.candidate.most
        said = [f"{_or_more(count, most)} at {factor:g} x" for factor, count in report.if_wrong.items()]
        yield f"If the step times are wrong, one seed of the busiest window needs {', '.join(said)} the profile's."
    if report.by_hour:
        rates = [one.hour.calls / one.hour.length_s for one in report.by_hour]
        more = max(rates) / (report.traffic.calls / report.traffic.span_s)
        mean = mean_workers(report.by_hour, workers)
        yield f"Over the trace: {mean:.2f} workers on average; the busiest hour has {more:.2f} x the mean rate."


def as_json(report: Report) -> dict[str, Any]:
    traffic, goal, best = report.traffic, report.goal, report.best
    return {
        "traffic": {
            "source": traffic.source,
            "span_s": traffic.span_s,
            "calls": traffic.calls,
            "growth": goal.growth,
            "busiest_window": traffic.busiest,
            "peak_hour": traffic.peak,
        },
        "goal": {
            **_limits(goal.slo),
            "attainment_share": goal.share,
            "classes": {name: _limits(slo) for name, slo in slos_of(goal.classes).items()},
        },
        "profiles": [
            {"name": one.name, "model": one.model, "hardware": one.hardware, "fingerprint": fingerprint(one) or None}
            for one in report.profiles
        ],
        "fleets": [_fleet(size) for size in report.sizes],
        "best": None if best is None else report.sizes.index(best),
        "workers": report.workers,
        "peak_hour": [{"workers": one.shape.workers, **_trial(one)} for one in report.peak_hour],
        "workers_by_step_time_factor": {str(factor): count for factor, count in report.if_wrong.items()},
        "hours": [
            {
                "start_s": one.hour.start_s,
                "calls": one.hour.calls,
                "prompt_tokens": one.hour.prompt_tokens,
                "workers": one.workers,
                "simulated": one.simulated,
            }
            for one in report.by_hour
        ],
        "mean_workers": mean_workers(report.by_hour, report.workers or 0) if report.by_hour else None,
    }


def _limits(slo: Slo) -> dict[str, float | None]:
    return {"ttft_ms": _finite(slo.ttft_ms), "tpot_ms": _finite(slo.tpot_ms), "e2el_ms": _finite(slo.e2e_ms)}


def _finite(limit: float) -> float | None:
    return limit if limit < float("inf") else None


def _fleet(size: Size) -> dict[str, Any]:
    price, shape = size.cost_per_hour, size.fleet.shape
    return {
        "policy": shape.policy,
        "profile": shape.profile,
        "workers": size.workers,
        "cost_per_hour": price,
        "cost_per_day": None if price is None else price * HOURS_PER_DAY,
        "limit": size.limit,
        "attained_share_with_one_lost": None if size.one_lost is None else size.one_lost.attained.share,
        **_trial(size.fleet),
        "by_workers": [{"workers": count, **_trial(trial)} for count, trial in size.trials.items()],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    reached, mean = trial.attained, trial.mean
    return {
        "prefill_workers": trial.shape.prefill_workers,
        "classes": {
            name: {
                "verdict": one.answer.name.lower(),
                "attained_share": interval(one).share,
                "calls": one.total,
                "late_calls": one.late,
            }
            for name, one in trial.classes.items()
        },
        "verdict": trial.verdict.answer.name.lower(),
        "attained_share": reached.share,
        "attained_low_share": reached.low,
        "attained_high_share": reached.high,
        "calls": trial.verdict.total,
        "late_calls": trial.verdict.late,
        "seeds": len(trial.measures),
        "cached_share": mean(lambda one: one.all.hit_share),
        "mean_ttft_ms": mean(lambda one: one.all.ttft_mean_ms),
        "p99_ttft_ms": mean(lambda one: one.all.ttft_p99_ms),
        "mean_tpot_ms": mean(lambda one: one.all.tpot_mean_ms),
        "mean_e2el_ms": mean(lambda one: one.all.e2e_mean_ms),
        "request_goodput": mean(lambda one: one.all.goodput_per_s),
        "kv_used_share": mean(lambda one: one.pressure.kv_share),
        "batch_used_share": mean(lambda one: one.pressure.batch_share),
    }
