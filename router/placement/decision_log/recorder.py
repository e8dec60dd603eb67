"""Write what policies see and choose, so that other policies can decide on it later."""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import is_not
from typing import Final, Protocol, TypeVar

from policies.view import (
    Decision,
    FleetView,
    LifecycleEvent,
    LifecycleEventKind,
    Policy,
    RequestView,
    Roster,
    RunningShare,
    WorkerId,
)
from router.placement.decision_log.lines import (
    VERSION,
    DecisionLine,
    EventLine,
    Line,
    PolicyLine,
    PromptLine,
    RosterLine,
    SnapshotLine,
    bare,
    columns_line,
    encode,
    packed,
)
from router.placement.defer import Defer, run_now
from router.placement.policies.policy_runner import PolicyRunner

PROMPTS_KEPT = 4_096
"""Decisions whose prompts later ones may refer to."""
MARK_BLOCKS = 16
"""Distance between the places at which two prompts are compared."""
MARKS_KEPT = 65_536


# A module constant, because looking up a member of an enum is slow.
_RESERVED: Final = LifecycleEventKind.RESERVED

K = TypeVar("K")
V = TypeVar("V")


def keep(kept: OrderedDict[K, V], key: K, value: V, most: int = PROMPTS_KEPT) -> None:
    """Put an entry at the end, and drop the first one beyond `most`."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)


class LineSink(Protocol):
    """Takes the lines of a log, and never blocks."""

    def write(self, line: bytes) -> bool: ...

    @property
    def full(self) -> bool: ...
    def rotate(self) -> None: ...


class Recorder:
    """Records whole windows of time: `window_s` seconds of each ``window_s / share``.

    A window begins with a snapshot of every policy. If a line is lost, the rest of its window is not recorded, because
    a replay needs every line. `wall` returns the Unix time.
    """

    def __init__(
        self, sink: LineSink, wall: Callable[[], float], *, share: float = 1.0, window_s: float = 60.0
    ) -> None:
        self._sink = sink
        self._wall = wall
        self._window_s = window_s
        self._period_s = window_s / share
        self._whole = share >= 1.0
        self._window: int | None = None
        """The window that is being recorded."""
        self._resumes_s = -math.inf
        """After a lost line: the start of the next window."""
        self._now_s = 0.0
        self._policies: tuple[Policy, ...] = ()
        self._number = 0
        self._marks: OrderedDict[int, int] = OrderedDict()
        """The last hash of recorded prompts, and every `MARK_BLOCKS`-th one -> a decision whose prompt begins so."""
        self._request_id = ""
        """The request of the latest decision, whose number is `_number`."""
        self._open: DecisionLine | None = None
        """The latest decision, while a reservation that carries it out at once can still be put into its line."""
        self._shares: list[tuple[WorkerId, int, float]] = []
        """The running shares that were asked for since the latest `before`."""
        self._roster: Roster | None = None
        self._rosters = 0
        self.decisions = 0
        self.lost_windows = 0
        self.later: Defer = run_now
        """Writes the line of a decision after its reservation, and before any other line at the latest."""

    def before(self, now_s: float, runners: Mapping[str, PolicyRunner]) -> None:
        """Begin a window if one is due, before a decision changes the state of its policy."""
        self._close_decision()
        self._now_s = now_s
        self._shares.clear()
        window = 0 if self._whole else int(now_s // self._period_s)
        due = self._whole or now_s - window * self._period_s < self._window_s
        if not due or now_s < self._resumes_s:
            self._window = None
            return
        policies = tuple([runner.policy for runner in runners.values()])
        changed = len(policies) != len(self._policies) or any(map(is_not, policies, self._policies))
        if self._window != window or changed or self._sink.full:
            self._window, self._policies = window, policies
            self._snapshot(now_s, runners)

    def listening(self, share: RunningShare) -> RunningShare:
        """Return `share`, which also notes the answers that a policy gets for its decision."""

        def heard(worker: WorkerId, request: RequestView, blocks: int) -> float:
            answer = share(worker, request, blocks)
            self._shares.append((worker, blocks, answer))
            return answer

        return heard

    def decided(self, policy: str, request: RequestView, fleet: FleetView, decision: Decision) -> None:
        if self._window is None:
            return
        self._number += 1
        self.decisions += 1
        columns = None
        if not fleet.is_small:
            columns = columns_line(fleet.columns, self._roster_of(fleet.roster))
        self._request_id = request.id
        self._open = DecisionLine(
            self._number,
            policy,
            fleet.now_s,
            bare(request),
            self._prompt(request.block_hashes),
            decision.ranked[0],
            decision.hold_s,
            fleet.workers if fleet.is_small else (),
            columns,
            tuple(self._shares),
        )
        if decision.hold_s:
            self._close_decision()

    def observed(self, event: LifecycleEvent) -> None:
        if self._window is None:
            return
        number = 0
        if event.kind is _RESERVED and event.fleet is not None and event.request.id == self._request_id:
            number, opened = self._number, self._open
            if (
                opened is not None
                and not opened.reserved
                and event.worker == opened.choice
                and event.now_s == opened.now_s
            ):
                opened.reserved = True
                self.later(self._close_decision, None)
                return
        self._close_decision()
        self._write(
            EventLine(
                event.kind,
                event.request.id,
                event.request.model,
                event.worker,
                event.now_s,
                event.cached_tokens,
                number,
                event.output_tokens,
            )
        )

    def _close_decision(self, _: object = None) -> None:
        """Write the line of the latest decision, unless that was done."""
        line, self._open = self._open, None
        if line is not None:
            self._write(line)

    def statistics(self) -> dict[str, int]:
        """Return recorded decisions, and windows that were cut short because a line was lost."""
        return {"decisions": self.decisions, "lost_windows": self.lost_windows}

    def _snapshot(self, now_s: float, runners: Mapping[str, PolicyRunner]) -> None:
        if self._sink.full:
            self._sink.rotate()
        self._marks.clear()
        self._request_id = ""
        self._roster = None
        policies = tuple([PolicyLine(name, runner.spec, _state(runner.policy)) for name, runner in runners.items()])
        self._write(SnapshotLine(VERSION, now_s, self._wall(), policies))

    def _prompt(self, hashes: Sequence[int]) -> PromptLine:
        if not hashes:
            return PromptLine()
        whole = self._marks.get(hashes[-1], 0)
        if whole and whole > self._number - PROMPTS_KEPT // 2:  # recent enough for later prompts, too
            return PromptLine(whole, len(hashes))
        base = kept = 0
        last = len(hashes) // MARK_BLOCKS * MARK_BLOCKS
        for length in chain((len(hashes),), range(last, 0, -MARK_BLOCKS)):
            number = self._marks.get(hashes[length - 1], 0)
            if number > self._number - PROMPTS_KEPT and number:
                base, kept = number, length
                break
        for length in chain(range(kept + MARK_BLOCKS - kept % MARK_BLOCKS, last + 1, MARK_BLOCKS), (len(hashes),)):
            keep(self._marks, hashes[length - 1], self._number, MARKS_KEPT)
        return PromptLine(base, kept, packed(hashes[kept:]))

    def _roster_of(self, roster: Roster) -> int:
        if roster is not self._roster:
            self._roster = roster
            self._rosters += 1
            labels = tuple([dict(labels) for labels in roster.labels])
            self._write(
                RosterLine(self._rosters, roster.ids, labels, () if roster.equal_weights else tuple(roster.weights))
            )
        return self._rosters

    def _write(self, line: Line) -> None:
        if self._window is not None and not self._sink.write(encode(line)):
            self._window = None
            self._resumes_s = (self._now_s // self._period_s + 1.0) * self._period_s
            self.lost_windows += 1


def _state(policy: Policy) -> bytes | None:
    try:
        return pickle.dumps(policy, protocol=5)
    except Exception:  # a third party's policy may not be made for it
        return None
