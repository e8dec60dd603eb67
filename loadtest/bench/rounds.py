"""The rounds. Each starts every proxy with its own stand-in, and takes each measure of all proxies in turn.

The proxies' samples of one measure and round are therefore close in time. Each measure takes the proxies in a new
order.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import uvloop
from rich.console import Console

from loadtest.bench.measures.catalogue import FIGURES, Kind
from loadtest.bench.measures.sample import Sample, Samples, Setting
from loadtest.bench.proxies.entrant import Entrant, Proxy, standins
from loadtest.bench.results import Results

MEASURE_LIMIT_S = 240.0


class Bench:
    """A run over proxies with `workers` behind each, collected in `results`."""

    def __init__(
        self, console: Console, setting: Setting, kinds: Sequence[Kind], results: Results, workers: int = 1
    ) -> None:
        self._workers = workers
        self._console = console
        self._setting = setting
        self._kinds = kinds
        self._results = results
        self._order = Random(0)

    def round(self, number: int, entrants: Sequence[Entrant], folder: Path) -> None:
        """Start the proxies that have not failed to start before, measure them and stop them."""
        entrants = [entrant for entrant in entrants if self._results.row(entrant.name).missing is None]
        said = f"round {number}/{self._results.rounds}"
        with ExitStack() as stack:
            self._console.out(f"{said}: starting {len(entrants)} proxies")
            proxies = self._start(entrants, folder / str(number), stack)
            taken: dict[str, dict[str, Sample]] = {proxy.name: {} for proxy in proxies}
            for kind in self._kinds:
                self._console.out(f"{said}, {kind.name}:", end="", highlight=False)
                for proxy in self._order.sample(proxies, len(proxies)):
                    proxy.seed = number
                    samples = measured(kind, proxy, self._setting)
                    taken[proxy.name].update(samples)
                    self._say(kind, proxy.name, samples)
                self._console.out("")
            for proxy in proxies:
                self._keep(proxy, taken[proxy.name])

    def _start(self, entrants: Sequence[Entrant], folder: Path, stack: ExitStack) -> list[Proxy]:
        places = [folder / entrant.name.replace(" ", "-") for entrant in entrants]
        with ThreadPoolExecutor(max(1, len(entrants))) as pool:
            started = list(pool.map(partial(_enter, workers=self._workers), entrants, places))
        proxies = []
        for entrant, outcome in zip(entrants, started, strict=True):
            if isinstance(outcome, Exception):
                self._not_started(entrant, outcome)
            else:
                own, proxy = outcome
                stack.push(own)
                proxies.append(proxy)
        return proxies

    def _not_started(self, entrant: Entrant, error: Exception) -> None:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = f"did not start: {lines[0]} {lines[-1] if len(lines) > 1 else ''}".strip()
        self._console.out(f"{entrant.name} {reason}", style="red", highlight=False)
        self._results.strike(entrant.name, reason)

    def _say(self, kind: Kind, name: str, samples: Samples) -> None:
        figure = FIGURES[kind.figures[0]]
        sample = samples[kind.figures[0]]
        said = "FAILED" if sample.errors else "skipped" if sample.skipped else f"{sample.value:.{figure.digits}f}"
        self._console.out(f" {name} {said}", end=";", highlight=False, style="red" if sample.errors else None)

    def _keep(self, proxy: Proxy, samples: Samples) -> None:
        reason = ""
        if proxy.inspect is not None:
            try:
                self._results.row(proxy.name).states.append(proxy.inspect())
            except Exception as error:
                reason = f"not as stated: {error}"
                self._console.out(f"{proxy.name} {reason}", style="red", highlight=False)
        for figure, sample in samples.items():
            worse = replace(sample, errors=sample.errors + 1, reasons=(*sample.reasons, reason)) if reason else sample
            self._results.add(figure, proxy.name, worse)


def _enter(entrant: Entrant, folder: Path, workers: int) -> tuple[ExitStack, Proxy] | Exception:
    """Start a stand-in and the proxy in front of it.

    An error is returned and not raised, because the others continue.
    """
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        try:
            place = stack.enter_context(standins(workers, folder, kv_events=True))
            proxy = stack.enter_context(entrant.start(place))
        except Exception as error:
            return error
        return stack.pop_all(), proxy
    raise AssertionError("unreachable")


def measured(kind: Kind, proxy: Proxy, setting: Setting) -> Samples:
    """Take one measure within a time limit; an error of the proxy becomes a sample that does not count."""

    async def bounded() -> Samples:
        async with asyncio.timeout(MEASURE_LIMIT_S):
            return await kind.measure(proxy, setting)

    try:
        with _no_collections():
            return uvloop.run(bounded())
    except Exception as error:
        # The failure of one proxy must not lose the figures of the others.
        return dict.fromkeys(kind.figures, Sample(errors=1, reasons=(f"{type(error).__name__}: {error}",)))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Switch off garbage collection, since a collection in the load generator would change the proxy's percentiles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
