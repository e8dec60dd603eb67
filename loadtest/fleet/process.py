"""Child processes: started in a session of their own, read for what they print, and never left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue

START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0


class StartError(RuntimeError):
    """A process did not come up; the message holds its last lines."""


class Process:
    """One child process whose output is read for the line that says it is ready.

    `environment` is added to our own; `log` names a file that gets everything the child prints.
    """

    def __init__(
        self, command: Sequence[str], name: str, environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self._lines: deque[str] = deque(maxlen=40)
        self._fresh: Queue[str | None] = Queue()
        self._log = log
        self.name = name
        # its own session: Ctrl-C reaches us alone, and we then stop our children in order
        self._child = subprocess.Popen(
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def _read(self) -> None:
        assert self._child.stdout is not None
        log = self._log.open("a", encoding="utf-8") if self._log is not None else None
        for line in self._child.stdout:
            self._lines.append(line.rstrip())
            self._fresh.put(line)
            if log is not None:
                log.write(line)
                log.flush()
        if log is not None:
            log.close()
        self._fresh.put(None)

    def wait_for(self, pattern: str, limit_s: float = START_LIMIT_S) -> re.Match[str]:
        """The first match of `pattern` in what the process prints.

        Raises:
            StartError: it ended, or printed no such line in time.
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
        """Return the unread lines, up to the end of the output."""
        while (line := self._fresh.get()) is not None:
            yield line

    def ended(self) -> StartError:
        """The error that says how it ended."""
        return StartError(f"{self.name} ended with code {self._child.wait()}:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines it printed."""
        return "\n".join(self._lines)

    def wait(self, limit_s: float) -> int:
        """Its exit code, once it has ended.

        Raises:
            StartError: it has not in time.
        """
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise StartError(f"{self.name} still runs after {limit_s:.0f} s:\n{self.tail()}") from None

    def terminate(self) -> None:
        """Ask it to stop, without waiting."""
        if self.alive:
            self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to it and every process it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to what stays of it and of what it started."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_LIMIT_S)
        self.kill()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off the signals that end a command until the block is done: a child is started and noted down, or neither.

    They cannot be blocked instead, since a child would inherit that.
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


def warmroute(*arguments: str) -> list[str]:
    """The command line of ``warmroute`` with these arguments, run by this very Python."""
    # -P: a folder called router/ where the user stands must not shadow ours
    return [sys.executable, "-P", "-m", "warmroute", *arguments]
