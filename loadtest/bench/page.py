"""``python -m loadtest.bench.page RESULTS.json``: write the results of gateway-bench as a page for the docs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from loadtest.bench.bars import FEWEST_ROUNDS, most_rounds
from loadtest.bench.bars import table as bars_table
from loadtest.bench.measures.catalogue import BASELINE, EVENT_FIGURES, FIGURES
from loadtest.bench.plot import draw
from loadtest.bench.proxies.warmroute import COMPILED
from loadtest.bench.results import Results, Spread, read

LESSON = """\
This page says what one request and one streamed token cost in CPU time, added latency and memory, through Warmroute and
through other proxies. All of them ran in turn on one machine, so the ratios carry further than the absolute figures."""
NOTES = f"""\
Every round starts each proxy afresh in front of a stand-in worker of its own (`loadtest/bench/standin.py`: ready-made
answers, one token per write, KV events as vLLM sends them) and takes one measure of all proxies after the other. Tables
show the median and (least - most) over rounds; ratios to {BASELINE} are taken within a round. CPU time is that of the
proxy's process tree. Load generator and stand-in share the cores with the proxy, so the rates of the cheapest
proxies are bounded by them.

- Requests: chat completions, not streamed, {{connections}} clients in a closed loop, 64 different questions behind one
  shared system prompt; every prompt has been seen before.
- Tokens: streams of 50 tokens/s each, or of what the machine lets through: "tokens/s" counts those that came.
- First byte: Poisson arrivals at a third of the proxy's own closed-loop rate; the same asked of the stand-in directly
  is taken off.
- Memory: growth of the resident set from next to nothing, over {{memory}} connections. A stream's figure includes its
  connection. What a proxy allocates for connections at its start is not in it.
"""


def page(results: Results) -> str:
    relative = [name for name in FIGURES if name in results.samples and FIGURES[name].relative]
    parts = [
        "# The gateway beside other proxies, in one run",
        LESSON,
        f"Made by `python -m loadtest.bench.page` from the results of `{results.command}`; do not edit.",
        "\n".join(_facts(results)),
        NOTES.format(connections=results.connections, memory=results.memory_connections).rstrip(),
        "\n".join(_proxies(results)),
        f"## In units of {BASELINE}",
        "\n".join(_table(results, relative, ratio=True)),
        "## As measured",
        "\n".join(_table(results, [name for name in FIGURES if name in results.samples], ratio=False)),
    ]
    return _joined(parts, results, "this run does not count")


OVERHEAD_LESSON = """\
This page says what a proxy adds, by rules that other benches use, too: latency at one connection, the request rate
within a bound of the tail, the streams until the first stall, and memory. The row `direct` has no proxy: it shows the
limit of clients and upstream, which share the machine's cores with the proxy."""
OVERHEAD_NOTES = """\
Every round starts each proxy afresh in front of a stand-in worker of its own, which streams a token every 20 ms. Tables
show the median and (least - most) over rounds.

- One connection: one client asks through the proxy and directly in turn; the figure is the difference of percentiles.
- Rate: Poisson arrivals, not streamed, at growing shares of the proxy's own closed-loop rate.
- Streams: their number doubles until one stream brings nothing for the stated time; 2,048 is the most.
- Memory: the resident set of the proxy's process tree, a second after the load in the last row."""


def overhead_page(results: Results) -> str:
    """Return the page of ``python -m loadtest overhead``."""
    parts = [
        "# What a proxy adds",
        OVERHEAD_LESSON,
        f"Made by `{results.command}`; do not edit.",
        "\n".join(_facts(results)),
        OVERHEAD_NOTES,
        "\n".join(_proxies(results)),
        "## As measured",
        "\n".join(_table(results, [name for name in FIGURES if name in results.samples], ratio=False)),
    ]
    return _joined(parts, results, "this run does not count")


NO_RESULT = "**This page is no result: fewer than four rounds count for any bar, so it decides none.**"
COST_LESSON = """\
This page holds what a request, a streamed token and a KV event cost against bars, most of them ratios to routers in
Rust that look at the prompt, too. Warmroute has everything on: exact views from KV events, metrics, API keys with cache
isolation, limits, routes and a decision log. Each proxy has four workers."""
COST_NOTES = """\
Every round starts each proxy afresh in front of a stand-in of its own with four workers, and takes one measure of all
proxies after the other, in random order. `measured` is the ratio of the medians over rounds, or the median; the
interval is a bootstrap over rounds. `against` is the peer with the least median, or the same gateway without KV
events. A bar is *met* if the whole interval is within it, *missed* if the whole interval is beyond it, and otherwise
*not decided*; fewer than four rounds that count decide nothing, and failed requests fail the bar. Load generator,
stand-in and proxy share the cores.

- Requests: chat completions, not streamed, {connections} clients in a closed loop; 64 questions after a system prompt
  of 2 kB. A third of the capacity is a third of the rate of this loop.
- Next turn: a conversation of 20,000 tokens that every proxy has seen, and each time a new question of 200 tokens.
- Tokens: streams of 50 tokens/s each, or of what the machine lets through.
- First byte: Poisson arrivals at a third of the proxy's own rate; the same asked of a stand-in directly is taken off.
- Memory: growth of the resident set over {memory} connections. A stream's figure includes its connection.
- KV events: two compiled processes, 4 clients in a closed loop; a publisher, which shares the cores, too, stores and
  removes blocks at the stated rate. Each process ingests all events.
"""


def cost_page(results: Results) -> str:
    """Return the page of ``python -m loadtest cost``."""
    figures = [name for name in FIGURES if name in results.samples and name not in EVENT_FIGURES.values()]
    compiled = any(row.name == COMPILED and row.missing is None for row in results.rows)
    parts = [
        "# What a request, a token and a KV event cost, against the bars",
        *([NO_RESULT] if most_rounds(results) < FEWEST_ROUNDS else []),
        COST_LESSON,
        f"Made by `{results.command}`{', after `make compiled`' if compiled else ''}; do not edit.",
        "\n".join(_facts(results)),
        COST_NOTES.format(connections=results.connections, memory=results.memory_connections).rstrip(),
        "\n".join(bars_table(results)),
        "## As measured",
        "\n".join(_proxies(results)),
        "\n".join(_table(results, figures, ratio=False)),
    ]
    return _joined(parts, results, "these figures do not count")


def _joined(parts: Sequence[str], results: Results, verdict: str) -> str:
    """Return the page of these parts, and of what failed, which has the `verdict`."""
    failed = "\n".join(f"- {line}" for line in results.complaints())
    return "\n\n".join([*parts, *([f"## Failed: {verdict}", failed] if failed else [])]) + "\n"


def _facts(results: Results) -> Iterator[str]:
    it = results.machine
    yield f"- {it.cpu}, {it.cores} cores, {it.memory_gib:g} GiB, {it.system}, Python {it.python}"
    if results.direct_rates:
        yield f"- The clients of the closed loop reach {median(results.direct_rates):,.0f} requests/s without a proxy"
    rounds = "one round" if results.rounds == 1 else f"{results.rounds} rounds"
    yield f"- {rounds}, windows of {results.window_s:g} s, {results.date}"
    if results.busy_share is not None:
        yield f"- Other programs used {results.busy_share:.0%} of the CPUs before the run"


def _proxies(results: Results) -> Iterator[str]:
    yield "| proxy | version | set up as |"
    yield "|---|---|---|"
    for row in results.rows:
        if row.missing is not None:
            yield f"| {row.name} | {row.version or '-'} | not measured: {row.missing} |"
        else:
            said = f"; at the end of the last round: {row.states[-1]}" if row.states else ""
            yield f"| {row.name} | {row.version} | {row.setup}{said} |"


def _table(results: Results, figures: Sequence[str], ratio: bool) -> Iterator[str]:
    """Yield the lines of a table with a row per figure and a column per proxy."""
    proxies = [row.name for row in results.rows if row.missing is None]
    yield "| " + " | ".join(["", *proxies]) + " |"
    yield "|---" * (len(proxies) + 1) + "|"
    for name in figures:
        figure = FIGURES[name]
        cells = [_cell(results, name, proxy, ratio) for proxy in proxies]
        yield "| " + " | ".join([figure.title if ratio else f"{figure.title}, {figure.unit}", *cells]) + " |"
        if not ratio and name.startswith("tokens-"):
            rates = [results.rate(name, proxy) for proxy in proxies]
            yield "| " + " | ".join(["its tokens/s", *(f"{rate:,.0f}" if rate else "-" for rate in rates)]) + " |"


def _cell(results: Results, figure: str, proxy: str, ratio: bool) -> str:
    if errors := results.errors(figure, proxy):
        return f"{errors} failed"
    if skipped := results.skipped(figure, proxy):
        return skipped
    spread = results.ratio(figure, proxy) if ratio else results.absolute(figure, proxy)
    return _said(spread, 2 if ratio else FIGURES[figure].digits)


def _said(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "-"
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f} - {spread.high:,.{digits}f})"


def main(arguments: list[str] | None = None) -> int:
    """Print the page, and draw the picture if --plot is given."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.page", description=__doc__)
    parser.add_argument("results", type=Path, help="file written by gateway-bench --json")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw the plot")
    args = parser.parse_args(arguments)
    results = read(args.results)
    sys.stdout.write(page(results))
    if args.plot is not None:
        draw(args.plot, results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
