"""Runs of hours: a line per window, records in rotated files, a resumed run, and slopes at the end.

A folder holds all of it: ``windows.jsonl`` with one line per window, and ``records-N.jsonl``, of which the last
`FILES` are kept. A run that finds windows in its folder goes on where the last one ended.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import httpx
import msgspec

from loadtest.load.metrics_page import sums
from loadtest.load.records import Goals, Record
from loadtest.load.steady import BINS, slope
from loadtest.load.tally import Tally
from loadtest.report.sheet import Sheet
from loadtest.workload.errors import WorkloadError

FILE_BYTES = 256 * 2**20
FILES = 16
HOUR_S = 3_600.0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One window of a run, which ends `end_s` after the beginning of the whole run; latencies are in ms."""

    end_s: float
    requests: int
    failed: int
    met: int
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    tpot_p99: float | None = None
    rss_bytes: int | None = None


class Endurance:
    """Writes windows and records into `folder`. `watched` is a process id or a URL of metrics, to read RSS from.

    Raises:
        WorkloadError: the folder has a file that is no list of windows.
    """

    def __init__(self, folder: Path, each_s: float, goals: Goals, watched: str | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._each_s, self._goals, self._watched = folder, each_s, goals, watched
        self.windows = _read(folder / "windows.jsonl")
        self.begun_s = self.windows[-1].end_s if self.windows else 0.0
        self.resumed = len(self.windows)
        self._began_s = self._open_s = -1.0
        self._tally = Tally(goals)
        numbers = [int(path.stem.rpartition("-")[2]) for path in folder.glob("records-*.jsonl")]
        self._number = max(numbers, default=0)
        self._file = self._next_file()

    def hear(self, one: Record) -> None:
        self._tally.add(one)
        self._file.write(msgspec.json.encode(one) + b"\n")
        if self._file.tell() > FILE_BYTES:
            self._file.close()
            self._file = self._next_file()

    def tick(self, now_s: float) -> None:
        """Close the window if its time is over. This run begins with the first call."""
        if self._began_s < 0.0:
            self._began_s = self._open_s = now_s
        if now_s - self._open_s >= self._each_s:
            self._close_window(now_s)

    def close(self, now_s: float) -> None:
        if self._tally.total:
            self._close_window(now_s)
        self._file.close()

    def _close_window(self, now_s: float) -> None:
        tally, self._tally, self._open_s = self._tally, Tally(self._goals), now_s
        ttft, tpot = (tally.samples[name].ordered() for name in ("ttft", "tpot"))

        def ms(values: list[float], value: float) -> float | None:
            return value * 1e3 if values else None

        window = Window(
            end_s=self.begun_s + now_s - self._began_s,
            requests=tally.total,
            failed=tally.failed,
            met=tally.met,
            ttft_p50=ms(ttft.values, ttft.at(0.5)),
            ttft_p99=ms(ttft.values, ttft.at(0.99)),
            tpot_p50=ms(tpot.values, tpot.at(0.5)),
            tpot_p99=ms(tpot.values, tpot.at(0.99)),
            rss_bytes=None if self._watched is None else rss_bytes(self._watched),
        )
        self.windows.append(window)
        with (self._folder / "windows.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(window) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._file.flush()

    def _next_file(self) -> IO[bytes]:
        self._number += 1
        (self._folder / f"records-{self._number - FILES:06}.jsonl").unlink(missing_ok=True)
        return (self._folder / f"records-{self._number:06}.jsonl").open("wb")


def _read(path: Path) -> list[Window]:
    if not path.exists():
        return []
    decode = msgspec.json.Decoder(Window).decode
    written = path.read_bytes()
    whole = written[: written.rfind(b"\n") + 1]  # a line that was cut has no end
    try:
        windows = [decode(line) for line in whole.splitlines()]
    except msgspec.MsgspecError as error:
        raise WorkloadError(f"{path} is no list of windows: {error}; name another folder") from None
    path.write_bytes(whole)
    return windows


def rss_bytes(watched: str) -> int | None:
    """Return the resident memory of a process of this machine, or as a page of metrics reports it; None if unknown."""
    try:
        if watched.isdigit():
            return int(Path("/proc", watched, "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        found = sums(httpx.get(watched, timeout=5.0).text).get("process_resident_memory_bytes")
        return None if found is None else int(found)
    except (OSError, httpx.HTTPError, ValueError):
        return None


def growth(windows: Sequence[Window]) -> Sheet:
    """Return the slopes per hour over all windows, with their 95 % intervals."""
    rows = []
    for label, name, scale in (
        ("RSS, MiB", "rss_bytes", 2.0**-20),
        ("TTFT p50, ms", "ttft_p50", 1.0),
        ("TTFT p99, ms", "ttft_p99", 1.0),
        ("TPOT p50, ms", "tpot_p50", 1.0),
        ("TPOT p99, ms", "tpot_p99", 1.0),
    ):
        points = [(one.end_s, value * scale) for one in windows if (value := getattr(one, name)) is not None]
        if len(points) >= BINS:
            found = slope(*zip(*points, strict=True))
            half = (found.per_s - found.low_per_s) * HOUR_S
            rows.append(
                (label, f"{points[0][1]:,.1f}", f"{points[-1][1]:,.1f}", f"{found.per_s * HOUR_S:+,.2f} ± {half:,.2f}")
            )
    requests, failed = sum(one.requests for one in windows), sum(one.failed for one in windows)
    note = f"{len(windows)} windows, {requests:,} requests, {failed:,} failed"
    if not rows:
        note += f"; slopes need {BINS} windows"
    return Sheet("growth over the whole run", ("", "first", "last", "per hour"), tuple(rows), note)
