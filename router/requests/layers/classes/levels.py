"""Whether streams met the service level of their class, and where the time of late ones went."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from router.metrics.instruments import Reading
from router.placement.admission.classes import RequestClass
from router.placement.tickets import Ticket
from router.requests.layer import Layer, LayeredRequest, RequestEnd

LATE_KEPT: Final = 200
"""Late streams of a class whose times are kept."""
_TARGETS: Final = ("ttft", "tpot")


@dataclass(slots=True)
class ClassLevel:
    """The streams of one class. `late` has the seconds before and at the worker of those with a late first token, and
    `slow` the time per token of those that were too slow. `unseen` complete answers had no visible first token."""

    of: RequestClass
    met: dict[tuple[str, bool], int] = field(
        default_factory=lambda: {(target, met): 0 for target in _TARGETS for met in (True, False)}
    )
    late: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=LATE_KEPT))
    slow: deque[float] = field(default_factory=lambda: deque(maxlen=LATE_KEPT))
    unseen: int = 0

    def first_token(self, waited_s: float, at_worker_s: float) -> None:
        if self.of.ttft_s is None:
            return
        met = waited_s + at_worker_s <= self.of.ttft_s
        self.met["ttft", met] += 1
        if not met:
            self.late.append((waited_s, at_worker_s))

    def tokens(self, tpot_s: float) -> None:
        if self.of.tpot_s is None:
            return
        met = tpot_s <= self.of.tpot_s
        self.met["tpot", met] += 1
        if not met:
            self.slow.append(tpot_s)

    def why(self, others_work_s: float) -> str | None:
        """Return where the time of late streams went; None without any. Others' waiting requests are `others_work_s`
        of work now."""
        said = [text for text in (self._late(others_work_s), self._slow()) if text is not None]
        if said and self.unseen:
            said.append(f"{self.unseen:,} answers are not counted, because nobody saw their first token")
        return "; ".join(said) or None

    def _late(self, others_work_s: float) -> str | None:
        if not self.late or self.of.ttft_s is None:
            return None
        waited_s, at_worker_s = (sum(part) / len(self.late) for part in zip(*self.late, strict=True))
        times = f"{waited_s:.2g} s before they went to a worker and {at_worker_s:.2g} s there"
        start = f"its last {len(self.late)} late streams took {times} (slo.ttft {self.of.ttft_s:g} s)"
        if at_worker_s > self.of.ttft_s:
            return f"{start}: the worker alone takes longer, and no order of the queue changes that"
        if waited_s > at_worker_s:
            return f"{start}: they waited for room; {others_work_s:.2g} s of other classes' work wait, too"
        return f"{start}: mostly the worker, whose own queue, batch and prefill are not told apart"

    def _slow(self) -> str | None:
        if not self.slow:
            return None
        tpot_s = sum(self.slow) / len(self.slow)
        return f"its last {len(self.slow)} slow streams took {tpot_s:.2g} s per token: the batch of their worker"


class ClassLevels:
    """The levels of all classes that have a target."""

    def __init__(self, classes: Iterable[RequestClass]) -> None:
        self._levels = {
            one.name: ClassLevel(one) for one in classes if one.ttft_s is not None or one.tpot_s is not None
        }

    def __bool__(self) -> bool:
        return bool(self._levels)

    def ended(self, request: LayeredRequest, end: RequestEnd, first: Ticket | None) -> None:
        """Judge a stream by its `first` answer: after the death of a worker, others have gone on with it."""
        level = None if request.claim is None else self._levels.get(request.claim.of.name)
        ticket = first or end.ticket
        if level is None or ticket is None or request.request is None:
            return
        if (at_worker_s := ticket.record.ttft_s) is None:
            level.unseen += end.answered is not None and end.status < 400
            return
        waited_s = max(0.0, ticket.reservation.at_s - request.arrived_s)
        if end.ttft_s is not None:
            at_worker_s = max(0.0, end.ttft_s - waited_s)
        level.first_token(waited_s, at_worker_s)
        tokens = end.usage.completion_tokens
        if end.answered is not None and end.status < 400 and tokens is not None and tokens > 1:
            level.tokens(max(0.0, end.duration_s - waited_s - at_worker_s) / (tokens - 1))

    def readings(self) -> Iterator[Reading]:
        for name, level in self._levels.items():
            for (target, met), streams in level.met.items():
                if getattr(level.of, f"{target}_s") is not None:
                    yield "warmroute_class_service_level_requests", (name, target, "true" if met else "false"), streams

    def reasons(self, work_s: Mapping[str, float]) -> dict[str, str]:
        """Return by class why streams were late. `work_s` is the work that waits, by class."""
        all_s = sum(work_s.values())
        whys = {name: level.why(max(0.0, all_s - work_s.get(name, 0.0))) for name, level in self._levels.items()}
        return {name: why for name, why in whys.items() if why is not None}


class LevelLayer(Layer):
    __slots__ = ("_first", "_levels", "_request")

    def __init__(self, levels: ClassLevels, request: LayeredRequest) -> None:
        self._levels = levels
        self._request = request
        self._first: Ticket | None = None

    def response_lines(self, ticket: Ticket | None) -> bytes:
        self._first = self._first or ticket
        return b""

    def ended(self, end: RequestEnd) -> None:
        self._levels.ended(self._request, end, self._first)
