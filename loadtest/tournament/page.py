"""The Markdown page for the docs, made from the scores alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from loadtest.lab.comparison import READING, Standing
from loadtest.report.sheet import table
from loadtest.tournament.ranking import BOUND, HEAVY, SATURATED, Loss, losses, matches, overall
from loadtest.tournament.scores import RANKED, REPORTED, Scores, Workload
from loadtest.tournament.study import ENOUGH_SEEDS

PICTURES = {"goodput_per_s_by_load": "goodput", "ttft_mean_ms_by_load": "mean TTFT", "ttft_p99_ms_by_load": "p99 TTFT"}
"""Names of pictures, with their subjects."""


def page(scores: Scores, name: str) -> str:
    """Return the page; `name` begins the names of its pictures. That of one workload has every measure."""
    parts = [
        f"# {name.capitalize()}: every rule on every workload",
        "This page says how long clients wait and how much work gets done under each routing rule, on each workload at"
        " several\nloads. It also names every case in which the judged rule loses, and by how much.",
        _made(scores),
        *(f"**Left out:** {line}." for line in scores.left_out),
        f"Figures: {READING}. TTFT counts calls whose client left with what they had waited; of goodput they are"
        " misses, as are those turned away.",
        "## Overall",
        *_overall(scores),
        f"## Where `{scores.judged}` loses",
        *_losses(scores),
        "## What was played",
        *_played(scores),
        *(part for workload in scores.workloads for part in _workload(scores, workload, name)),
    ]
    return "\n\n".join(parts) + "\n"


def picture(name: str, workload: Workload, what: str) -> str:
    return f"{name}-{workload.name}-{what}.png"


def _behind(one: Standing) -> str:
    """Format how much worse it is than the best, with the paired interval."""
    half = "" if one.difference_half is None else f" ±{one.difference_half * 100:.1f}"
    return f"{one.difference * 100:.1f}{half} %"


def _name(scores: Scores, policy: str) -> str:
    """Format a rule's name; the judged rule's is bold."""
    return f"**`{policy}`**" if policy == scores.judged else f"`{policy}`"


def _made(scores: Scores) -> str:
    seeds = "one seed" if scores.seeds == 1 else f"{scores.seeds} seeds"
    said = (
        f"Made by `{scores.asked}`; do not edit. {len(scores.policies)} rules, {len(scores.workloads)} workload(s),"
        f" loads {', '.join(f'{load:g}' for load in scores.loads)}, {seeds}, windows of {scores.window_s:g} s of which"
        f" the first {scores.warm_up_s:g} s warm caches and are not measured. Code {scores.code}."
    )
    if scores.quick:
        said += f" **A look only: fewer than {ENOUGH_SEEDS} seeds. Nothing here is to be published.**"
    return said


def _overall(scores: Scores) -> Iterator[str]:
    found = overall(scores)
    yield _margin("goodput", [one.goodput for one in found])
    yield _margin("sustained load", [one.sustained for one in found])
    yield table(
        ("rule", "goodput", "sustained load", "mean TTFT, x best", "p99 TTFT, x best", "holds", "worst match"),
        (
            (
                _name(scores, one.policy),
                one.goodput.figure(".3f"),
                one.sustained.figure(".3f"),
                *(f"{ratio:.2f}" for ratio in one.times.values()),
                f"{one.held} of {one.played}",
                f"{one.worst:+.1%}: {one.worst_at}" if one.worst > 0.0 else "none behind",
            )
            for one in found
        ),
    )
    yield (
        "*goodput*: calls per second that met the service level, in units of each workload's load 1.0, mean over"
        " workloads and loads. *sustained load*: the"
        f" highest load up to which at least {BOUND * 100:g} % did, between two loads linearly, at most"
        f" {scores.loads[-1]:g}, and 0 where the lowest load misses it; mean over workloads. *x best*: geometric mean"
        " over workloads and loads of the rule's mean over the best rule's. *holds*: matches (workload, load, measure)"
        f" below load {SATURATED:g} in which it is first or not inferior to the first. *worst match*: where its mean is"
        " furthest behind the best, at any load."
    )


def _margin(what: str, found: Sequence[Standing]) -> str:
    """Return the lead of the first rule."""
    ranked = sorted(found, key=lambda one: one.difference)
    first = next(one for one in ranked if one.best)
    others = [one for one in ranked if not one.best]
    if not others:
        return f"`{first.policy}` is alone."
    return f"First in {what}: `{first.policy}`; next: `{others[0].policy}`, {_behind(others[0])} behind."


def _losses(scores: Scores) -> Iterator[str]:
    found, played = losses(scores), len(list(matches(scores)))
    below = sum(loss.match.load < SATURATED for loss in found)
    heavy = sum(loss.heavy for loss in found)
    yield (
        f"Of {played} matches `{scores.judged}` is first or not inferior to the first in {played - len(found)}."
        f" Of the other {len(found)}, {below} lie below load {SATURATED:g}; in {heavy} its mean is more than"
        f" {HEAVY * 100:g} % worse than the best."
    )
    if found:
        heads = ("workload", "load", "measure", f"`{scores.judged}`", "best rule", "its mean", "behind by", "seeds say")
        yield table(heads, map(_loss, found))


def _loss(loss: Loss) -> tuple[str, ...]:
    match, ours, form = loss.match, loss.ours, loss.match.measure.form
    lag = f"**{_behind(ours)}**" if loss.heavy else _behind(ours)
    where = match.workload.title, f"{match.load:g}", match.measure.title
    return *where, f"{ours.mean:{form}}", f"`{match.first.policy}`", f"{match.first.mean:{form}}", lag, loss.why


def _played(scores: Scores) -> Iterator[str]:
    yield table(
        ("workload", "trace", "fleet", "SLO, TTFT:TPOT", "KV block", "load 1.0", "round robin's", "calls measured"),
        (
            (
                one.title,
                f"`{one.trace}`",
                f"{one.workers} x {one.profile}",
                f"{one.ttft_ms:g}:{one.tpot_ms:g} ms",
                "the trace's own" if one.block_tokens is None else f"{one.block_tokens} tokens",
                f"{one.load_1_calls_per_s:.2f} calls/s",
                "-" if one.round_robin_calls_per_s is None else f"{one.round_robin_calls_per_s:.2f} calls/s",
                f"{one.calls:,}",
            )
            for one in scores.workloads
        ),
    )
    yield (
        "Load 1.0 is where `lpwl`'s 90th percentile of TTFT crosses the service level. Of a trace the window is of its"
        " own time, replayed at each load; a generator fills the window at the rate. KV blocks are larger than an"
        " engine's 16 tokens where prompts are long: that runs faster, and every rule's caches hit a little less. A"
        " dash: round robin holds the service level at no rate, or no rate was searched."
    )


def _workload(scores: Scores, workload: Workload, name: str) -> Iterator[str]:
    """Yield the pictures, and for each load a table with a column per measure, from its best rule down."""
    yield f"## {workload.title[0].upper()}{workload.title[1:]}"
    yield "\n".join(f"![{shown} by load]({picture(name, workload, file)})" for file, shown in PICTURES.items())
    for load, found in groupby(matches(scores, [workload]), lambda match: match.load):
        columns = [
            [f"{_name(scores, one.policy)} {one.figure(match.measure.form)}" for one in match.standings]
            for match in found
        ]
        places = map(str, range(1, len(scores.policies) + 1))
        yield f"### {workload.title}, load {load:g}"
        yield table(("place", *(measure.title for measure in RANKED)), zip(places, *columns, strict=True))
        if len(scores.workloads) == 1:
            yield _others(scores, workload, load)


def _others(scores: Scores, workload: Workload, load: float) -> str:
    """Return a row per rule, with the measures that are not ranked."""
    measures = [measure for measure in REPORTED if measure not in RANKED]
    columns = [[one.figure(measure.form) for one in workload.standings(measure, load)] for measure in measures]
    names = [_name(scores, policy) for policy in workload.policies]
    return table(("rule", *(measure.title for measure in measures)), zip(names, *columns, strict=True))
