"""The findings as tables, on the console and as a page of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from loadtest.lab.tables import Sheet, print_sheet
from loadtest.replicas.bars import bars, exchanges
from loadtest.replicas.cases import Played, Spread
from loadtest.replicas.exchange import Cost
from loadtest.replicas.findings import PARTS, Findings

_TITLES = {
    "live": "Real processes",
    "sim": "Virtual time",
    "exchange": "The exchange alone",
    "faults": "Redis cut under load",
}
_NOTES = {
    "live": """\
Embedded workers with the step times of Llama-3.1-8B on one H100, stretched by 3, and the conversations of
`warmroute demo`, dealt out to the gateways in turn. Each run has a fresh fleet.""",
    "sim": """\
Four modelled workers. Each gateway has its own dispatcher, estimates and cache views. The messages are the real ones,
sent every 20 ms of virtual time, or every 40 ms by eight gateways, and read 1 ms later. Sessions are dealt out in
turn.""",
    "exchange": """\
Processes without HTTP that reserve and release load on 16 workers, and share the ledger through a real Redis. A
decision writes three rows. *Without Redis* is the same process with the same decisions. Placements are those of prompts
whose blocks are all new, on workers without KV events. A process that has no core for a second connects again, and has
then missed messages; the last row of the bars shows that the load is right all the same.""",
    "faults": """\
Closed-loop clients on two gateways, half of them on kept connections, that accept no error and never try again. The
gateways find their workers in Redis alone. Times count from the moment at which Redis can answer again; with Sentinel,
from the death of the master.""",
}


def sheets(findings: Findings) -> Iterator[tuple[str, Sheet]]:
    """Yield the part and the table of each; the first is that of the bars."""
    rows = [(bar.what, bar.where, bar.measured, bar.limit, "yes" if bar.met else "**no**") for bar in bars(findings)]
    yield "", Sheet("Bars", ("", "where", "measured", "bar", "met"), tuple(rows))
    if findings.live:
        yield "live", _played(_TITLES["live"], findings.live)
    for name, played in findings.sim.items():
        yield "sim", _played(f"{_TITLES['sim']}, {name}", played)
    for shared, costs in exchanges(findings).items():
        yield "exchange", _costs(shared, costs)
    if findings.faults:
        yield "faults", _faults(findings)


def _played(title: str, played: Sequence[Played]) -> Sheet:
    heads = ("gateways", "views", "Redis", "cached share", "busiest over mean", "mean TTFT, ms", "runs", "failed")
    return Sheet(title, heads, tuple(_row(each) for each in played))


def _row(played: Played) -> tuple[str, ...]:
    case, runs = played.case, played.runs
    return (
        str(case.gateways),
        case.views,
        "yes" if case.redis else "no",
        played.cached().text(".3f"),
        played.imbalance().text(".2f"),
        Spread.of([run.ttft_mean_ms for run in runs]).text(".0f"),
        f"{len(runs)} of {sum(run.requests for run in runs) // len(runs):,} requests",
        str(sum(run.failed for run in runs)),
    )


_COSTS: tuple[tuple[str, Callable[[Cost], float], str], ...] = (
    ("Redis, CPU of a core", lambda cost: cost.redis, ".1%"),
    ("a replica, CPU of a core", lambda cost: cost.replica, ".1%"),
    ("the same without Redis", lambda cost: cost.replica - cost.added, ".1%"),
    ("added by the exchange", lambda cost: cost.added, ".1%"),
    ("messages per second, all replicas", lambda cost: cost.messages_per_s, ".0f"),
    ("messages and placements lost", lambda cost: float(cost.missed), ".0f"),
    ("machine's CPU in use by all programs", lambda cost: cost.busy, ".0%"),
)


def _costs(shared: str, costs: Sequence[Cost]) -> Sheet:
    rows = tuple((title, Spread.of([of(cost) for cost in costs]).text(form)) for title, of, form in _COSTS)
    return Sheet(f"{_TITLES['exchange']}, {shared}", ("", f"median (range) of {len(costs)} rounds"), rows)


def _faults(findings: Findings) -> Sheet:
    heads = ("Redis", "requests", "failed", "gateways that said they were alone", "load shared, s", "registered, s")
    rows = tuple(
        (
            each.fault,
            str(each.requests),
            str(len(each.failures)),
            str(each.alone),
            f"{each.shared_s:.1f}",
            f"{each.registered_s:.1f}",
        )
        for each in findings.faults
    )
    return Sheet(_TITLES["faults"], heads, rows)


def show(console: Console, findings: Findings) -> None:
    """Print all tables."""
    for _, sheet in sheets(findings):
        print_sheet(console, sheet)


def page(findings: Findings) -> str:
    """Return all tables as a page."""
    parts = ["# Several gateways against one", _ABOUT, _commands(findings), _losing(findings)]
    said: set[str] = set()
    for part, sheet in sheets(findings):
        if part not in said:
            said.add(part)
            parts += [f"## {_TITLES.get(part, 'The bars')}", _NOTES.get(part, _BARS)]
        lines = [_line(sheet.heads), _line(["---"] * len(sheet.heads)), *map(_line, sheet.rows)]
        title = sheet.title if sheet.title not in ("Bars", *_TITLES.values()) else ""
        parts += [*([f"{title}:"] if title else []), "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


_ABOUT = """\
This page says what several gateways in front of one fleet lose against one gateway, what sharing through Redis costs,
and what happens when Redis stops. [How to run several](../how-to/run-several-replicas.md) says what is shared."""
_BARS = """\
A figure is the median, with the least and the greatest of the runs behind it. *Lost* is the cached share of one gateway
minus that of several, run by run. The busiest worker is the one that prefilled the most tokens; where the ranges of two
cases overlap widely, the runs do not decide this bar."""


def _commands(findings: Findings) -> str:
    taken = [(part, findings.taken[part]) for part in PARTS if part in findings.taken]
    rows = [f"| {_TITLES[part]} | `{one.command}` | {one.date} | {one.busy:.0%} |" for part, one in taken]
    machines = dict.fromkeys(
        f"{one.machine.cpu}, {one.machine.cores} cores, {one.machine.memory_gib:g} GiB, {one.machine.system}, "
        f"Python {one.machine.python}"
        for _, one in taken
    )
    made = _MADE.format("; ".join(machines))
    return "\n".join([made, "", "| part | command | date | CPU in use |", "|---|---|---|---|", *rows])


_MADE = """\
Made by the commands below; do not edit. Machine: {}.
Other programs used it, too: the last column is the share of its CPU time in use while a part ran. Virtual time and
cached shares do not depend on that, and CPU time little; TTFT of real processes does."""


def _losing(findings: Findings) -> str:
    missed = [bar for bar in bars(findings) if not bar.met]
    if not missed:
        return "**All bars are met.**"
    lines = [f"- {bar.where}: {bar.what} is {bar.measured}, and the bar {bar.limit}" for bar in missed]
    return "\n".join(["**Bars that are missed:**", "", *lines])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
