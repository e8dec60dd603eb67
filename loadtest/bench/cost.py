"""``python -m loadtest cost``: hold what a request, a token and a KV event cost against the bars.

Warmroute runs with everything on, from source and compiled, beside the routers from PyPI that look at the prompt. Each
proxy has four workers. The page has a row per bar: the ratio of medians over rounds with its interval. A proxy that
fails a measure has no figure for it, and the page says why. Last come rounds beside KV events.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from loadtest.arguments import positive, whole
from loadtest.bench.bars import FEWEST_ROUNDS, WITH_EVENTS, WITHOUT_EVENTS
from loadtest.bench.events import Load, beside
from loadtest.bench.measures.catalogue import COST, EVENT_FIGURES
from loadtest.bench.measures.subject import Sample
from loadtest.bench.page import cost_page
from loadtest.bench.proxies.entrant import Entrant, Missing
from loadtest.bench.proxies.entrants import with_everything_on
from loadtest.bench.proxies.warmroute import COMPILED
from loadtest.bench.results import Results
from loadtest.bench.runs import QUICK, add_flags, busy_share, command_line, measured, wide_console, write_files

WORKERS = 4
PROCESSES = 2
EVENT_CONNECTIONS = 4


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_flags(parser, rounds=6, window_s=0.6)
    parser.add_argument(
        "--compiled-env",
        type=Path,
        default=Path(".venv-compiled"),
        metavar="DIR",
        help="environment with a compiled Warmroute (default: %(default)s)",
    )
    parser.add_argument(
        "--event-rounds",
        type=whole,
        default=FEWEST_ROUNDS,
        help="rounds beside KV events; none with --quick or without a compiled Warmroute (default %(default)s)",
    )
    parser.add_argument(
        "--event-requests", type=positive, default=3_000, help="requests of such a round (default %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the results; return 1 if a request to Warmroute failed."""
    console = wide_console()
    listed = with_everything_on(args.peers_env, args.compiled_env, args.only, console.out)
    event_rounds = _event_rounds(args, listed)
    requests = [f"--event-requests {args.event_requests}"] if event_rounds else []
    command = command_line(args, "cost", [f"--event-rounds {event_rounds}", *requests])
    busy = busy_share()
    results = measured(args, console, command, listed, COST, QUICK, WORKERS)
    results.busy_share = busy
    program = [str(args.compiled_env.absolute() / "bin" / "warmroute")]
    load = Load(args.event_requests, EVENT_CONNECTIONS, PROCESSES, program)
    for number in range(event_rounds):
        console.out(f"round {number + 1}/{event_rounds} beside KV events")
        _add_events(results, load)
    console.out(cost_page(results), highlight=False)
    write_files(args, results, cost_page)
    return 1 if any(line.startswith("warmroute") for line in results.complaints()) else 0


def _event_rounds(args: argparse.Namespace, listed: Sequence[Entrant | Missing]) -> int:
    """Return the number of rounds beside KV events, which the compiled Warmroute is measured in."""
    compiled = any(isinstance(one, Entrant) and one.name == COMPILED for one in listed)
    return int(args.event_rounds) if compiled and not args.quick else 0


def _add_events(results: Results, load: Load) -> None:
    """Add one round: first bytes without KV events and at each rate."""
    without = _sample(partial(_first_byte, load, 0))
    for rate, figure in EVENT_FIGURES.items():
        results.add(figure, WITHOUT_EVENTS, without)
        results.add(figure, WITH_EVENTS, _sample(partial(_first_byte, load, rate)))


def _first_byte(load: Load, blocks_per_s: int) -> Sample:
    cost, _ = beside(load, blocks_per_s)
    return Sample(cost.first_byte_ms[1], load.requests, 0.0, cost.errors)


def _sample(measure: Callable[[], Sample]) -> Sample:
    try:
        return measure()
    except Exception as error:
        # One failure must not lose the figures of all rounds.
        return Sample(0.0, 0, 0.0, 1, (f"{type(error).__name__}: {error}",))
