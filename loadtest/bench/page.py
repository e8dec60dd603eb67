"""The results as a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from loadtest.bench import bars
from loadtest.bench.measures.catalogue import FIGURES
from loadtest.bench.results import Results
from loadtest.report.sheet import table

NOTES = {
    "request": "Requests: chat completions, not streamed, {connections} clients in a closed loop; 64 questions after"
    " one system prompt, and every prompt has been seen before.",
    "text": "Known by text: the same requests where neither the gateway nor its workers have a tokenizer.",
    "next-turn": "Next turn: a conversation of 20,000 tokens that every proxy has seen, and each time a new question of"
    " 200 tokens.",
    "tokens": "Tokens: streams of 50 tokens/s each, or of what the machine lets through.",
    "first byte": "First byte: Poisson arrivals at a third of the proxy's own closed-loop rate; the same asked of the"
    " stand-in directly is taken off.",
    "idle connection": "Memory of a connection: growth of the resident set over {memory} connections. A stream's figure"
    " includes its connection.",
    "one connection": "One connection: one client asks through the proxy and directly in turn; the figure is the"
    " difference of percentiles.",
    "bounded rate": "Rate: Poisson arrivals, not streamed, at growing shares of the proxy's own closed-loop rate.",
    "streams": "Streams: their number doubles until one stream brings nothing for the stated time; 2,048 is the most.",
    "memory": "Memory: the resident set of the proxy's process tree, a second after the load in the last row.",
    "events": "KV events: two processes, 4 clients in a closed loop; a publisher, which shares the cores, too, stores"
    " and removes blocks at the stated rate. Their CPU time is that of one process without requests.",
}
"""By the start of a figure's name."""


def page(results: Results) -> str:
    """Return the page."""
    figures = [name for name in FIGURES if name in results.samples]
    notes = [text for start, text in NOTES.items() if any(name.startswith(start) for name in figures)]
    counts = {"connections": results.connections, "memory": results.memory_connections}
    parts = [
        "# What the gateway costs",
        f"Made by `{results.command}`; do not edit.",
        "\n".join(_facts(results)),
        "Every round starts each proxy in front of its own stand-in, and takes one measure of all proxies after the"
        " other, in random order. CPU time is that of the proxy's process tree. Load generator and stand-in share the"
        " cores with it.",
        "\n".join(f"- {text}" for text in notes).format(**counts),
        table(["proxy", "version", "set up as"], _proxies(results)),
        *(_bars(results) if results.everything_on else []),
        *_ratios(results, [name for name in figures if FIGURES[name].relative]),
        "## As measured",
        "Median and (least - most) over rounds.",
        table(["", *results.measured], _measured(results, figures)),
    ]
    failed = "\n".join(f"- {line}" for line in results.complaints())
    return "\n\n".join([*parts, *(["## Failed: these figures do not count", failed] if failed else [])]) + "\n"


def _facts(results: Results) -> Iterator[str]:
    yield f"- {results.machine}"
    rounds = "one round" if results.rounds == 1 else f"{results.rounds} rounds"
    yield f"- {rounds}, windows of {results.window_s:g} s, {results.date}"
    yield f"- Other programs used {results.busy_share:.0%} of the CPUs before the run"


def _proxies(results: Results) -> Iterator[list[str]]:
    for row in results.rows:
        said = f"; at the end of the last round: {row.states[-1]}" if row.states else ""
        missing = None if row.missing is None else f"not measured: {row.missing}"
        yield [row.name, row.version or "-", missing or f"{row.setup}{said}"]


def _bars(results: Results) -> Iterator[str]:
    yield "## Against the bars"
    yield (
        "`against` is the peer with the least median. A bar is *met* if the whole interval is within it, *missed*"
        " if the whole interval is beyond it, and otherwise *not decided*."
    )
    yield table(["what", "of", "against", "measured", "95 % interval", "bar", ""], bars.rows(results))


def _ratios(results: Results, figures: list[str]) -> Iterator[str]:
    """Yield the section with the ratios of the first proxy to each of the others."""
    ours, *others = results.measured or [""]
    if not others or not figures:
        return
    yield f"## `{ours}` as a ratio to each of the others"
    yield "The ratio of medians over rounds, and its 95 % interval, a bootstrap over rounds."
    rows = ([FIGURES[name].title, *(_ratio(results.pairs(name, ours, other)) for other in others)] for name in figures)
    yield table(["", *others], rows)


def _ratio(pairs: list[tuple[float, float]]) -> str:
    pairs = [(one, other) for one, other in pairs if other > 0]
    if not pairs:
        return "-"
    low, high = bars.interval(pairs, bars.ratio_of_medians)
    return f"{bars.ratio_of_medians(pairs):.2f} ({low:.2f} to {high:.2f})"


def _measured(results: Results, figures: list[str]) -> Iterator[list[str]]:
    """Yield a row per figure with a cell per proxy."""
    for name in figures:
        cells = [_cell(results, name, proxy) for proxy in results.measured]
        yield [f"{FIGURES[name].title}, {FIGURES[name].unit}", *cells]
        if name.startswith("tokens-"):
            rates = [results.rate(name, proxy) for proxy in results.measured]
            yield ["its tokens/s", *(f"{rate:,.0f}" if rate else "-" for rate in rates)]


def _cell(results: Results, figure: str, proxy: str) -> str:
    if errors := results.errors(figure, proxy):
        return f"{errors} failed"
    values, digits = results.values(figure, proxy), FIGURES[figure].digits
    if not values:
        return results.skipped(figure, proxy) or "-"
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} - {max(values):,.{digits}f})"
