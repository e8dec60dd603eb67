"""Start the demo's processes, read the URLs they print, and leave nothing behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import Empty, Queue

START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0


class StartError(RuntimeError):
    """A process did not come up; the message holds its last lines."""


class Process:
    """One child process whose output is read for the line that says it is ready."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._lines: deque[str] = deque(maxlen=40)
        self._fresh: Queue[str | None] = Queue()
        self._name = arguments[0]
        # -P: a folder called router/ where the user stands must not shadow ours
        command = [sys.executable, "-P", "-m", "warmroute", *arguments]
        # its own session: Ctrl-C reaches the demo alone, which then stops its children in order
        self._child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.append(line.rstrip())
            self._fresh.put(line)
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
                raise StartError(f"warmroute {self._name} ended with code {self._child.wait()}:\n{self.tail()}")
            if match := re.search(pattern, line):
                return match
        raise StartError(f"warmroute {self._name} was not ready within {limit_s:.0f} s:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines it printed."""
        return "\n".join(self._lines)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if it stays."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


@dataclass(frozen=True, slots=True)
class Running:
    """URLs of a running fleet."""

    public_url: str
    admin_url: str
    worker_urls: tuple[str, ...]
    gateway: Process
    workers: tuple[Process, ...]


URL = r"(http://[^\s\"',]+)"


@contextmanager
def running(
    workers: int, policy: str, worker_flags: Sequence[str] = (), serve_flags: Sequence[str] = ()
) -> Iterator[Running]:
    """`workers` embedded workers and a gateway in front of them, all on free loopback ports."""
    with ExitStack() as stack:
        children: list[Process] = []

        def start(arguments: Sequence[str]) -> Process:
            child = Process(arguments)
            stack.callback(child.stop)
            children.append(child)
            return child

        for number in range(workers):
            start(["worker", "--host", "127.0.0.1", "--port", "0", "--seed", str(number), *worker_flags])
        urls = tuple(child.wait_for(rf"worker {URL}").group(1) for child in children)
        flags = [flag for url in urls for flag in ("--worker", url)]
        ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
        gateway = start(["serve", *ports, "--policy", policy, *flags, *serve_flags])
        public_url = gateway.wait_for(rf"public port.*{URL}").group(1)
        admin_url = gateway.wait_for(rf"admin port.*{URL}").group(1)
        yield Running(public_url, admin_url, urls, gateway, tuple(children[:-1]))
