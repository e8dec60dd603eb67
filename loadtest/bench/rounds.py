"""The rounds. Each starts every proxy with its own stand-in, and takes each measure of all proxies in turn.

The proxies' samples of one measure and round are therefore close in time. Each measure takes the proxies in a new
order.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import uvloop
from rich.console import Console

from loadtest.bench.bodies import plain_requests
from loadtest.bench.measures.catalogue import FIGURES, Kind
from loadtest.bench.measures.requests import closed_loop
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.bench.proxies.entrant import Entrant, Place, Proxy, standins
from loadtest.bench.results import Results

MEASURE_LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class _Running:
    proxy: Proxy
    standin_url: str

    def subject(self, seed: int) -> Subject:
        proxy = self.proxy
        return Subject(
            proxy.name, proxy.url, proxy.pid, self.standin_url, seed, lines=proxy.lines, program=proxy.program
        )


class Bench:
    """A run over `entrants`, collected in `results`."""

    def __init__(
        self, console: Console, setting: Setting, kinds: Sequence[Kind], results: Results, workers: int = 1
    ) -> None:
        """`workers` stand behind each proxy."""
        self._workers = workers
        self._console = console
        self._setting = setting
        self._kinds = kinds
        self._results = results
        self._order = Random(0)

    def round(self, number: int, entrants: Sequence[Entrant], folder: Path) -> None:
        """Start the proxies that have not failed to start before, measure them and stop them."""
        begin_s = time.monotonic()
        entrants = [entrant for entrant in entrants if self._results.row(entrant.name).missing is None]
        with ExitStack() as stack:
            running = self._start(number, entrants, folder, stack)
            subjects = [one.subject(number) for one in running]
            taken: dict[str, dict[str, Sample]] = {one.proxy.name: {} for one in running}
            for kind in self._kinds:
                self._console.out(f"round {number}/{self._results.rounds}, {kind.name}:", end="", highlight=False)
                for subject in self._order.sample(subjects, len(subjects)):
                    samples = measured(kind, subject, self._setting)
                    taken[subject.name].update(samples)
                    self._say(kind, subject.name, samples)
                self._console.out("")
            if running and any("rate" in kind.figures for kind in self._kinds):
                self._results.direct_rates.append(_direct_rate(running[0].standin_url, self._setting))
            for one in running:
                self._keep(one.proxy, taken[one.proxy.name])
        self._console.out(f"round {number}/{self._results.rounds} took {time.monotonic() - begin_s:.0f} s")

    def _start(self, number: int, entrants: Sequence[Entrant], folder: Path, stack: ExitStack) -> list[_Running]:
        self._console.out(f"round {number}/{self._results.rounds}: starting {len(entrants)} proxies")
        places = [folder / f"{number}-{entrant.name.replace(' ', '-')}" for entrant in entrants]
        with ThreadPoolExecutor(max(1, len(entrants))) as pool:
            started = pool.map(partial(_enter, workers=self._workers), entrants, places)
        running = []
        for entrant, outcome in zip(entrants, started, strict=True):
            if isinstance(outcome, Exception):
                self._not_started(entrant, outcome)
            else:
                own, one = outcome
                stack.push(own)
                running.append(one)
        return running

    def _not_started(self, entrant: Entrant, error: Exception) -> None:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = f"did not start: {lines[0]} {lines[-1] if len(lines) > 1 else ''}".strip()
        self._console.out(f"{entrant.name} {reason}", style="red", highlight=False)
        self._results.strike(entrant.name, reason)

    def _say(self, kind: Kind, name: str, samples: Mapping[str, Sample]) -> None:
        figure = FIGURES[kind.figures[0]]
        sample = samples[kind.figures[0]]
        said = "FAILED" if sample.errors else "skipped" if sample.skipped else f"{sample.value:.{figure.digits}f}"
        self._console.out(f" {name} {said}", end=";", highlight=False, style="red" if sample.errors else None)

    def _keep(self, proxy: Proxy, samples: Mapping[str, Sample]) -> None:
        reason = ""
        if proxy.inspect is not None:
            try:
                said = proxy.inspect()
                self._results.row(proxy.name).states.append(said)
            except Exception as error:
                reason = f"not as stated: {error}"
                self._console.out(f"{proxy.name} {reason}", style="red", highlight=False)
        for figure, sample in samples.items():
            worse = replace(sample, errors=sample.errors + 1, reasons=(*sample.reasons, reason)) if reason else sample
            self._results.add(figure, proxy.name, worse)


def _enter(entrant: Entrant, folder: Path, workers: int) -> tuple[ExitStack, _Running] | Exception:
    """Start a stand-in and the proxy in front of it.

    An error is returned and not raised, because the others continue.
    """
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        try:
            first, *others = stack.enter_context(standins(workers, folder, kv_events=True))
            place = Place(first, folder, tuple(others))
            proxy = stack.enter_context(entrant.start(place))
        except Exception as error:
            return error
        return stack.pop_all(), _Running(proxy, place.worker_url)
    raise AssertionError("unreachable")


def _direct_rate(url: str, setting: Setting) -> float:
    nobody = Subject("no proxy", url, os.getpid(), url, 0)
    requests = plain_requests(url, 2_000)
    return uvloop.run(closed_loop(nobody, requests, setting.connections, setting.window_s / 2)).rate


def measured(kind: Kind, subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Take one measure within a time limit; an error of the proxy becomes a sample that does not count."""

    async def bounded() -> Mapping[str, Sample]:
        async with asyncio.timeout(MEASURE_LIMIT_S):
            return await kind.measure(subject, setting)

    try:
        with _no_collections():
            return uvloop.run(bounded())
    except Exception as error:
        # The failure of one proxy must not lose the figures of the others.
        failed = Sample(0.0, 0, 0.0, 1, (f"{type(error).__name__}: {error}",))
        return dict.fromkeys(kind.figures, failed)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Switch off garbage collection, since a collection in the load generator would change the proxy's percentiles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
