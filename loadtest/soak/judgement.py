"""Whether what a client saw follows from what was broken: of every error, or it counts against the gateway.

A fault explains only what no gateway could have hidden. A killed worker explains an answer of its own that broke off,
in the documented way; it does not explain an error before the first byte while another worker was well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.drive.seen import Kind, Seen
from loadtest.soak.faults import Fault, FaultLog

_FATAL = frozenset({Fault.KILL})
_STALLING = frozenset({Fault.PAUSE, Fault.KILL})
_IN_STREAM = {"worker_died_in_stream": _FATAL, "stream_idle_timeout": _STALLING}
"""Codes of the error event of a started answer, and the faults that excuse them."""
_BEFORE = frozenset({"worker_failed", "overloaded", "no_worker_available"})
"""Codes of errors before an answer: excused when every worker that was tried was broken."""


def needs_attempts(seen: Seen) -> bool:
    """Whether the decisions about it are wanted. The list is long, and making it costs the gateway memory."""
    return seen.code in _BEFORE or not seen.worker


def unexplained(
    seen: Seen, attempts: Sequence[Mapping[str, Any]], faults: FaultLog, workers: Iterable[str]
) -> str | None:
    """What is wrong about `seen`; None when nothing is.

    `attempts` are the decisions about it, newest first; `workers` are the fleet.
    """
    # the head of an answer behind comments went out before its worker was known
    worker = seen.worker or (str(attempts[0]["worker"]) if attempts else "")
    match seen.kind:
        case Kind.COMPLETE | Kind.LEFT:
            return None
        case Kind.ERROR_EVENT if seen.code in _IN_STREAM and worker:
            return _of_worker(worker, seen, faults, _IN_STREAM[seen.code])
        case Kind.CUT if worker:
            return _of_worker(worker, seen, faults, _STALLING)
        case Kind.REFUSED | Kind.ERROR_EVENT if seen.code in _BEFORE:
            return _of_attempts(seen, attempts, faults, workers)
        case _:
            return "no fault excuses this"


def _of_worker(worker: str, seen: Seen, faults: FaultLog, kinds: frozenset[Fault]) -> str | None:
    if faults.on(worker, seen.began_s, seen.ended_s, kinds):
        return None
    return f"{worker} had none of {', '.join(sorted(kinds))} at that time"


def _of_attempts(
    seen: Seen, attempts: Sequence[Mapping[str, Any]], faults: FaultLog, workers: Iterable[str]
) -> str | None:
    tried = {str(attempt["worker"]) for attempt in attempts}
    well = [
        worker for worker in sorted(tried or workers) if not faults.on(worker, seen.began_s, seen.ended_s, _STALLING)
    ]
    if not well:
        return None
    return f"{', '.join(well)} {'failed it' if tried else 'could have taken it'} without a fault at that time"
