"""Measure what an open console costs a gateway: ``python -m loadtest.bench.parts.console [--workers N]``.

A gateway with a fleet of stand-in workers (as in `loadtest.bench.parts.discovery`) serves chats at a steady rate. The
workers take turns, so that as many rows of the fleet change every second as there are requests. Windows without a
viewer and with one alternate. The viewer reads what the page reads: the stream of its panel, the diagnosis every 10 s,
and the panel's own document. Printed are, for each panel, the median and the range of the pairs: the gateway's CPU time
with the viewer, less that without, in percent of a core.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from loadtest.bench.bodies import PATH, chat_body
from loadtest.bench.parts.discovery import Fleet, fleet, until, workers
from loadtest.peers.cpu import tree_cpu_s

DIAGNOSIS_S = 10.0
"""As in router/admin/console/app.js."""
SENDERS = 32


@dataclass(frozen=True, slots=True)
class Panel:
    """What a panel reads: its stream, and a document every few seconds."""

    stream: str | None
    document: str | None = None
    every_s: float = DIAGNOSIS_S


PANELS = {
    "fleet": Panel("/fleet?watch=true"),
    "traffic": Panel("/traffic?watch=true"),
    "decisions": Panel("/decisions?watch=true&limit=100"),
    "prefixes": Panel(None, "/prefixes?limit=100", 5.0),
}


class Viewer:
    """A console that is open until `close`. `received_bytes` counts its stream."""

    def __init__(self, admin_url: str, panel: Panel) -> None:
        self._url, self._panel = f"{admin_url}/admin/v1", panel
        self._over = threading.Event()
        self.received_bytes = 0
        self._threads = [threading.Thread(target=self._poll, args=("/diagnosis", DIAGNOSIS_S))]
        if panel.document is not None:
            self._threads.append(threading.Thread(target=self._poll, args=(panel.document, panel.every_s)))
        if panel.stream is not None:
            self._threads.append(threading.Thread(target=self._watch, args=(panel.stream,)))
        for thread in self._threads:
            thread.start()

    def _poll(self, path: str, every_s: float) -> None:
        with httpx.Client(timeout=30) as client:
            while not self._over.is_set():
                client.get(self._url + path).raise_for_status()
                self._over.wait(every_s)

    def _watch(self, path: str) -> None:
        with httpx.stream("GET", self._url + path, timeout=30) as answer:
            for chunk in answer.raise_for_status().iter_raw():
                self.received_bytes += len(chunk)
                if self._over.is_set():
                    return

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def chats(url: str, rate: float) -> Iterator[None]:
    """Send `rate` short streams per second."""
    over = threading.Event()
    bodies = [chat_body(True, 16, 2_000, f"number {number}") for number in range(64)]

    def send(first: int) -> None:
        with httpx.Client(timeout=30, headers={"content-type": "application/json"}) as client:
            for number in range(first, 1_000_000_000, SENDERS):
                if over.wait(max(0.0, began_s + number / rate - time.monotonic())):
                    return
                client.post(url + PATH, content=bodies[number % len(bodies)]).raise_for_status()

    began_s = time.monotonic()
    threads = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def share(pid: int, window_s: float) -> float:
    """Return the CPU time of the gateway in a window, in percent of a core."""
    before, began_s = tree_cpu_s(pid), time.monotonic()
    time.sleep(window_s)
    return 100 * (tree_cpu_s(pid) - before) / (time.monotonic() - began_s)


def pair(one: Fleet, panel: Panel, window_s: float, *, viewer_first: bool) -> tuple[float, float, int]:
    """Return the shares without and with a viewer, and the bytes that the viewer received per second."""
    alone = share(one.pid, window_s) if not viewer_first else 0.0
    viewer = Viewer(one.admin_url, panel)
    time.sleep(1.0)  # the snapshot is sent once
    before = viewer.received_bytes
    watched = share(one.pid, window_s)
    received = viewer.received_bytes - before
    viewer.close()
    return share(one.pid, window_s) if viewer_first else alone, watched, round(received / window_s)


def measure(one: Fleet, panel: Panel, pairs: int, window_s: float) -> str:
    """Return the line of one panel."""
    found = [pair(one, panel, window_s, viewer_first=bool(number % 2)) for number in range(pairs)]
    costs = [watched - alone for alone, watched, _ in found]
    without, received = (statistics.median([each[place] for each in found]) for place in (0, 2))
    low, high = min(costs), max(costs)
    return (
        f"{statistics.median(costs):5.2f} % of a core ({low:.2f} to {high:.2f}), "
        f"{without:.1f} % without, {received / 1000:.1f} kB/s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second (default %(default)s)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--panel", choices=PANELS, nargs="+", default=list(PANELS))
    args = parser.parse_args(arguments)
    with workers(args.workers) as urls, TemporaryDirectory() as folder, fleet(1, Path(folder)) as one:
        one.name(urls)
        until(lambda: one.ready() == len(urls))
        httpx.put(f"{one.admin_url}/admin/v1/policy", json={"rule": "round_robin"}, timeout=30).raise_for_status()
        with chats(one.public_url, args.rate):
            for name in args.panel:
                print(f"{name:>10} {measure(one, PANELS[name], args.pairs, args.window_s)}", flush=True)


if __name__ == "__main__":
    main()
