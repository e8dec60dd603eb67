"""Another client: requests ``/livez`` every few milliseconds from a process of its own, and records the answer times.

    python tests/support/witness.py 127.0.0.1:8000 127.0.0.1:9000

Each line that it prints is one answer: the address and four times in seconds. They are the due time and the arrival
time (monotonic clock), the time taken, and the part of it that the gateway caused itself (`cost.own_share_s`). The last
two are equal until a line ``ADDRESS PID`` on standard input names the gateway's process.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KB = 1_024
_NS = 1e-9

Scheduled = Mapping[str, tuple[float, float]]
"""By thread: seconds on a core, and seconds ready to run but without a core."""


class ProcessCost:
    """Readings of the process `pid`.

    Raises:
        OSError: at a reading, if the process has ended.
    """

    def __init__(self, pid: int) -> None:
        self._home = Path("/proc", str(pid))

    @property
    def cpu_s(self) -> float:
        """Return user and system seconds of all its threads."""
        fields = (self._home / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    @property
    def rss_bytes(self) -> int:
        """Return the memory in use."""
        return self._status("VmRSS")

    @property
    def peak_rss_bytes(self) -> int:
        """Return the highest memory use since `reset_peak`."""
        return self._status("VmHWM")

    def scheduled(self) -> Scheduled:
        """Return the times of its threads so far."""
        threads = {}
        for thread in os.listdir(self._home / "task"):
            try:
                figures = Path(self._home, "task", thread, "schedstat").read_text().split()
            except OSError:
                continue  # a thread may end at any time
            threads[thread] = (int(figures[0]) * _NS, int(figures[1]) * _NS)
        return threads

    def reset_peak(self) -> None:
        """Reset `peak_rss_bytes` to the memory in use now."""
        (self._home / "clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        for line in (self._home / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * _KB
        raise OSError(f"no {name} of process {self._home.name}: it has ended")


def core_wait_s(before: Scheduled, after: Scheduled) -> float:
    """Return the longest time between two readings that any thread was ready to run but had no core."""
    return max(_differences(before, after, 1), default=0.0)


def own_share_s(took_s: float, before: Scheduled, after: Scheduled) -> float:
    """Return the part of `took_s` that the process caused itself, without that of other programs on the same cores.

    The event loop waits for a core, or for another thread that holds the interpreter's lock and waits for a core. The
    waits of the threads may follow each other or overlap. So subtracting their sum can be too much, and subtracting the
    longest too little. The result is the time that the process had a core, limited to the range between the two.
    """
    waits = _differences(before, after, 1)
    longest, all_of_them = max(waits, default=0.0), sum(waits)
    worked_s = sum(_differences(before, after, 0))
    return max(0.0, min(took_s - longest, max(took_s - all_of_them, worked_s)))


def _differences(before: Scheduled, after: Scheduled, index: int) -> list[float]:
    return [after[thread][index] - before[thread][index] for thread in after if thread in before]


PERIOD_S = 0.005
ANSWER_LIMIT_S = 30.0
DIALS_EVERY = 10
"""One request in this number uses a new connection."""
_REQUEST = b"GET /livez HTTP/1.1\r\nHost: witness\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting times of another client, in seconds."""

    count: int
    p99_s: float
    max_s: float
    raw_p99_s: float
    raw_max_s: float
    """Maximum that includes the waits caused by other programs on the machine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. The gateway caused `own_s` of `took_s` itself."""

    due_s: float
    ended_s: float
    took_s: float
    own_s: float


def summary(answers: Sequence[Answer]) -> Waits:
    """Return the waits for the gateway, without and with the waits for a core."""
    own = spread([answer.own_s for answer in answers])
    raw = spread([answer.took_s for answer in answers])
    return Waits(len(answers), *_p99_and_max(own), *_p99_and_max(raw))


def _p99_and_max(ordered: Sequence[float]) -> tuple[float, float]:
    return (ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1]) if ordered else (0.0, 0.0)


def spread(answers_s: Sequence[float], period_s: float = PERIOD_S) -> list[float]:
    """Return the sorted waits of a client that arrives at any time, from the times of sequential requests.

    A slow request delays the ones after it. Each of these counts with the wait that it would have had.
    """
    every: list[float] = []
    for took_s in answers_s:
        every.append(took_s)
        every += [took_s - index * period_s for index in range(1, int(took_s / period_s))]
    return sorted(every)


class Witness:
    """The process, for the length of a ``with``. `seen` returns the waits within a span of time."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses
        self._lock = threading.Lock()
        self._answers: dict[str, list[Answer]] = {address: [] for address in addresses}

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", __file__, *self._addresses]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()
        self._reader.join()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    def serves(self, address: str, pid: int) -> None:
        """Set the process that serves `address` from now on."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{address} {pid}\n")
        self._child.stdin.flush()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            address, *figures = line.split()
            with self._lock:
                self._answers[address].append(Answer(*map(float, figures)))

    def settle(self, until_s: float) -> None:
        """Wait until each address has answered a request that was due after `until_s` (monotonic)."""
        end_s = time.monotonic() + 2 * ANSWER_LIMIT_S
        while time.monotonic() < end_s:
            with self._lock:
                if all(answers and answers[-1].due_s >= until_s for answers in self._answers.values()):
                    return
            time.sleep(PERIOD_S)

    def seen(self, address: str, begin_s: float, end_s: float) -> Waits:
        """Return the waits of the requests to `address` that were in progress between the two times (monotonic)."""
        with self._lock:
            answers = list(self._answers[address])
        return summary([answer for answer in answers if answer.due_s <= end_s and answer.ended_s >= begin_s])


def _ask(connection: socket.socket) -> None:
    connection.sendall(_REQUEST)
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = connection.recv(4_096)
        if not piece:
            raise ConnectionResetError("closed before an answer")
        answer += piece


class _Pids:
    """The process that serves each address, read from standard input."""

    def __init__(self) -> None:
        self._costs: dict[str, ProcessCost] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            address, pid = line.split()
            self._costs[address] = ProcessCost(int(pid))

    def scheduled(self, address: str) -> Scheduled:
        cost = self._costs.get(address)
        with suppress(OSError):
            return cost.scheduled() if cost is not None else {}
        return {}


def _waited_s() -> float:
    """Return the seconds for which this thread has been ready to run without a core."""
    with open("/proc/thread-self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) * 1e-9


def _watch(address: str, pids: _Pids) -> None:
    host, _, port = address.rpartition(":")
    connection: socket.socket | None = None
    number = 0
    due_s = time.monotonic()
    while True:
        due_s = max(due_s + PERIOD_S, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
        number += 1
        if connection is not None and number % DIALS_EVERY == 0:
            connection.close()
            connection = None
        before, waited_s = pids.scheduled(address), _waited_s()
        try:
            connection = connection or socket.create_connection((host, int(port)), ANSWER_LIMIT_S)
            _ask(connection)
            least_s = 0.0
        except OSError:
            connection = None
            least_s = ANSWER_LIMIT_S  # an unanswered request counts as the longest wait
            time.sleep(0.1)
        ended_s = time.monotonic()
        took_s = max(least_s, ended_s - due_s)
        own_s = own_share_s(max(0.0, took_s - (_waited_s() - waited_s)), before, pids.scheduled(address))
        os.write(1, f"{address} {due_s:.6f} {ended_s:.6f} {took_s:.6f} {own_s:.6f}\n".encode())


def main(addresses: Sequence[str]) -> None:
    """Watch each address in its own thread until killed."""
    pids = _Pids()
    threads = [threading.Thread(target=_watch, args=(address, pids)) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
