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
_BEFORE = frozenset({"worker_failed", "first_event_timeout", "overloaded", "no_worker_available"})
"""Codes of errors before an answer: excused when every worker that was tried was broken."""


def unexplained(
    seen: Seen, attempts: Sequence[Mapping[str, Any]], faults: FaultLog, workers: Iterable[str]
) -> str | None:
    """What is wrong about `seen`; None when nothing is. `attempts` are the decisions about it, `workers` the fleet."""
    match seen.kind:
        case Kind.COMPLETE | Kind.LEFT:
            return None
        case Kind.ERROR_EVENT if seen.code in _IN_STREAM and seen.worker:
            return _of_worker(seen, faults, _IN_STREAM[seen.code])
        case Kind.CUT if seen.worker:
            return _of_worker(seen, faults, _STALLING)
        case Kind.REFUSED | Kind.ERROR_EVENT if seen.code in _BEFORE:
            return _of_attempts(seen, attempts, faults, workers)
        case _:
            return "no fault excuses this"


def _of_worker(seen: Seen, faults: FaultLog, kinds: frozenset[Fault]) -> str | None:
    if faults.on(seen.worker, seen.began_s, seen.ended_s, kinds):
        return None
    return f"{seen.worker} had none of {', '.join(sorted(kinds))} at that time"


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
