"""Fetch tokenizer files in a child process, one model after another."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from router.hub.fetch import FETCH_S

MOST_MODELS = 64
"""Models that one process fetches: workers name them, and each takes up to 70 MB of the disk."""
SOON_S, LATER_S = 60.0, 3_600.0
"""Time until a model is asked for again, if the hub did not answer, and if it has no files for this gateway."""
HUB = "https://huggingface.co"
_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_TRUE = frozenset({"1", "on", "yes", "true"})

log = logging.getLogger("warmroute.prompts")


@dataclass(frozen=True, slots=True)
class Fetched:
    """The folder of a model's files, or the problem and the time after which to ask again."""

    folder: Path | None
    problem: str = ""
    again_s: float = 0.0


def is_hub_name(name: str | None) -> bool:
    """Whether `name` can be a model of the hub: org/model."""
    return name is not None and _NAME.fullmatch(name) is not None


class HubFetcher:
    """Fetches with the environment `environ`. Its thread and its child begin with the first model."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.endpoint = (environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        """The hub, or a mirror, for people."""
        self._thread: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._asked: dict[str, Future[Fetched]] = {}

    def why_not(self, name: str) -> str | None:
        """Return why nothing is fetched for this model; None if it is."""
        if self._environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
            return "HF_HUB_OFFLINE is set"
        if len(self._asked) >= MOST_MODELS and name not in self._asked:
            return f"{MOST_MODELS} models have been fetched"
        return None

    def fetch(self, name: str) -> Future[Fetched]:
        """Fetch a model's files. A model that is being fetched is not fetched twice."""
        running = self._asked.get(name)
        if running is not None and not running.done():
            return running
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer-hub")
        future = self._asked[name] = self._thread.submit(self._fetch, name)
        return future

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, name: str) -> Fetched:
        try:
            fetched = self._result(name)
        except OSError as error:  # the system starts no process
            fetched = Fetched(None, f"{type(error).__name__}: {error}", SOON_S)
        if fetched.folder is not None:
            log.info("tokenizer files fetched", extra={"model": name, "folder": str(fetched.folder)})
        elif not self._closed:
            fields = {"model": name, "hub": self.endpoint, "reason": fetched.problem}
            log.warning("tokenizer files not fetched: prompts take another way", extra=fields)
        return fetched

    def _result(self, name: str) -> Fetched:
        command = [sys.executable, "-P", "-m", "router.hub.fetch", name]
        with self._lock:
            if self._closed:
                return Fetched(None, "the gateway ends")
            self._child = child = subprocess.Popen(
                command,
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        try:
            said, _ = child.communicate(timeout=FETCH_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return Fetched(None, f"{self.endpoint} took longer than {FETCH_S} s", LATER_S)
        finally:
            self._child = None
        return _read(said, child.returncode)


def _read(said: bytes, status: int) -> Fetched:
    try:
        document = json.loads(said)
        if "folder" in document:
            return Fetched(Path(document["folder"]))
        return Fetched(None, document["problem"], LATER_S if document["lasting"] else SOON_S)
    except (ValueError, KeyError, TypeError):
        return Fetched(None, f"the process that fetches ended with {status}", LATER_S)
