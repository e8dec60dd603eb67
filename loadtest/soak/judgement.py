"""Decide whether the faults explain an error that a client saw. An unexplained error counts against the gateway.

A fault explains only an error that no gateway could have hidden. A killed worker explains that its own answer broke off
in the documented way. It does not explain an error before the first byte while another worker was healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.load.seen import Kind, Seen
from loadtest.soak.faults import Fault, FaultLog

_FATAL = frozenset({Fault.KILL})
_STALLING = frozenset({Fault.PAUSE, Fault.KILL})
_IN_STREAM = {"worker_died_in_stream": _FATAL, "stream_idle_timeout": _STALLING}
"""Codes of the error event in a started answer, and the faults that excuse each."""
_BEFORE = {
    **dict.fromkeys(("worker_failed", "overloaded", "no_worker_available"), _STALLING),
    "request_crashes_workers": _FATAL,
}
"""Codes of errors before an answer. Each is excused if every worker that was tried had one of its faults."""


def needs_attempts(seen: Seen) -> bool:
    """Return whether the decisions about the request are needed.

    The gateway's list of decisions is long, and building it costs the gateway memory.
    """
    return seen.code in _BEFORE or not seen.worker


def unexplained(
    seen: Seen, attempts: Sequence[Mapping[str, Any]], faults: FaultLog, workers: Iterable[str]
) -> str | None:
    """Return the reason why `seen` is a failure, or None if it is none.

    `attempts` are the decisions about the request, newest first; `workers` are the fleet.
    """
    # If comments came first, the response head was sent before the worker was known.
    worker = seen.worker or (str(attempts[0]["worker"]) if attempts else "")
    match seen.kind:
        case Kind.COMPLETE | Kind.LEFT:
            return None
        case Kind.ERROR_EVENT if seen.code in _IN_STREAM and worker:
            return _of_worker(worker, seen, faults, _IN_STREAM[seen.code])
        case Kind.CUT if worker:
            return _of_worker(worker, seen, faults, _STALLING)
        case Kind.REFUSED | Kind.ERROR_EVENT if seen.code in _BEFORE:
            return _of_attempts(seen, attempts, faults, workers, _BEFORE[seen.code])
        case _:
            return "no fault excuses this"


def _of_worker(worker: str, seen: Seen, faults: FaultLog, kinds: frozenset[Fault]) -> str | None:
    if faults.on(worker, seen.began_s, seen.ended_s, kinds):
        return None
    return f"{worker} had none of {', '.join(sorted(kinds))} at that time"


def _of_attempts(
    seen: Seen,
    attempts: Sequence[Mapping[str, Any]],
    faults: FaultLog,
    workers: Iterable[str],
    kinds: frozenset[Fault],
) -> str | None:
    tried = {str(attempt["worker"]) for attempt in attempts}
    well = [worker for worker in sorted(tried or workers) if not faults.on(worker, seen.began_s, seen.ended_s, kinds)]
    if not well:
        return None
    return f"{', '.join(well)} {'failed it' if tried else 'could have taken it'} without a fault at that time"
