"""Child processes: each has a session of its own, has its output read, and is always stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue

START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ends."""


class StartError(RuntimeError):
    """A process did not start; the message holds its last lines."""


class Process:
    """One child process, whose output is searched for the line that reports it ready.

    `environment` is added to the parent's. A gateway logs text, unless its settings say otherwise. `log` names a file
    for all of the child's output.
    """

    def __init__(
        self, command: Sequence[str], name: str, environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self._lines: deque[str] = deque(maxlen=40)
        self._fresh: Queue[str | None] = Queue()
        self._log = log
        self.name = name
        # With a session of its own the child does not get Ctrl-C. The parent gets it alone and stops the children in
        # order.
        self._child = subprocess.Popen(
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={"WARMROUTE_LOG_FORMAT": "text", **os.environ, **(environment or {})},
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def _read(self) -> None:
        assert self._child.stdout is not None
        log = self._log.open("a", encoding="utf-8") if self._log is not None else None
        for line in self._child.stdout:
            self._lines.append(line.rstrip())
            if log is not None:
                log.write(line)
                log.flush()
            self._fresh.put(line)
        if log is not None:
            log.close()
        self._fresh.put(None)

    def wait_for(self, pattern: str, limit_s: float = START_LIMIT_S) -> re.Match[str]:
        """Return the first match of `pattern` in the output of the process.

        Raises:
            StartError: it ended, or did not print such a line in time.
        """
        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                line = self._fresh.get(timeout=left_s)
            except Empty:
                break
            if line is None:
                raise self.ended()
            if match := re.search(pattern, line):
                return match
        raise StartError(f"{self.name} was not ready within {limit_s:.0f} s:\n{self.tail()}")

    def rest(self) -> Iterator[str]:
        while (line := self._fresh.get()) is not None:
            yield line

    def ended(self) -> StartError:
        return StartError(f"{self.name} ended with code {self._child.wait()}:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(self._lines)

    def wait(self, limit_s: float) -> int:
        """Wait for the end of the process and return its exit code.

        Raises:
            StartError: it did not end in time.
        """
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise StartError(f"{self.name} still runs after {limit_s:.0f} s:\n{self.tail()}") from None

    def terminate(self) -> None:
        if self.alive:
            self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process and all processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL to the remaining processes, including those that it started."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_LIMIT_S)
        self.kill()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay the signals that end a command until the end of the block.

    A child process is thus either started and recorded, or not started. The signals cannot be blocked instead, because
    a child would inherit the blocked signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in handlers:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def started(
    stack: ExitStack,
    command: Sequence[str],
    name: str,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Process:
    """Start a process that ends with `stack`, even if a signal arrives at that moment."""
    with uninterrupted():
        process = Process(command, name, environment, log)
        stack.callback(process.stop)
    return process


def until(reached: Callable[[], bool], problem: Callable[[], str], limit_s: float, pause_s: float = 0.05) -> None:
    """Wait until `reached`.

    Raises:
        StartError: it was not in time; the message has the `problem`.
    """
    end_s = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() >= end_s:
            raise StartError(f"after {limit_s:.0f} s {problem()}")
        time.sleep(pause_s)


def exit_code(command: str, work: Callable[[], int], *errors: type[Exception], failed: int = 1) -> int:
    """Do a command's work and return its exit code; SIGTERM and SIGHUP end it as Ctrl-C does, with 130.

    A StartError, an OSError or one of `errors` is printed, and the code is `failed`.
    """
    caught: tuple[type[Exception], ...] = (StartError, OSError, *errors)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        return work()
    except caught as error:
        sys.stderr.write(f"{command}: {error}\n")
        return failed
    except KeyboardInterrupt:
        return INTERRUPTED


def warmroute(*arguments: str) -> list[str]:
    # -P: a folder called router/ in the current directory must not replace Warmroute's own package.
    return [sys.executable, "-P", "-m", "warmroute", *arguments]
