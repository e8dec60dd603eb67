"""Decide again on a decision log: with the policies that made it, or with another one."""

from __future__ import annotations

import io
import pickle
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import (
    FleetView,
    LifecycleEvent,
    LifecycleEventKind,
    RequestView,
    Roster,
    RunningShare,
    WorkerId,
    WorkerView,
)
from router.placement.decision_log.lines import (
    VERSION,
    DecisionLine,
    EventLine,
    PolicyLine,
    RosterLine,
    SnapshotLine,
    decode,
    fleet_of,
    unpacked,
)
from router.placement.decision_log.recorder import keep
from router.placement.policies.policy_runner import PolicyRunner

_NAMES = frozenset(
    {
        ("random", "Random"),
        ("array", "array"),
        ("array", "_array_reconstructor"),
        ("collections", "OrderedDict"),
        ("collections", "deque"),
        ("collections", "defaultdict"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
    }
)
"""What the state of a policy may be made of, beside classes of `policies`."""


class LogError(Exception):
    """A decision log that cannot be read; the message names the line."""


class Replayed(NamedTuple):
    """One decision of the log, and the same decision by the replaying policy."""

    policy: str
    request: RequestView
    fleet: FleetView
    recorded: WorkerId
    replayed: WorkerId
    held: bool
    """Whether the recorded policy held the request."""
    holds: bool
    """Whether the replaying policy would hold it."""

    @property
    def same(self) -> bool:
        """Whether both chose the same worker, and both held the request or neither."""
        return self.recorded == self.replayed and self.held == self.holds

    def view(self, worker: WorkerId) -> WorkerView:
        place = self.fleet.row_of(worker)
        assert place is not None, "the log names candidates"
        return self.fleet.worker(place)


class RunningPrompts:
    """Which prompts run on each worker, from the events that a replay has seen: answers `FleetView.running_share`."""

    def __init__(self) -> None:
        self._running: dict[WorkerId, dict[str, Sequence[int]]] = {}

    def clear(self) -> None:
        self._running.clear()

    def observe(self, kind: LifecycleEventKind, worker: WorkerId, request: RequestView) -> None:
        running = self._running.setdefault(worker, {})
        if kind is LifecycleEventKind.RESERVED:
            running[request.id] = request.block_hashes
        elif kind is not LifecycleEventKind.FIRST_TOKEN:
            running.pop(request.id, None)

    def share(self, worker: WorkerId, request: RequestView, blocks: int) -> float:
        running, hashes = self._running.get(worker), request.block_hashes
        if not running or not 0 < blocks <= len(hashes):
            return 0.0
        alike = [len(others) >= blocks and others[blocks - 1] == hashes[blocks - 1] for others in running.values()]
        return sum(alike) / len(alike)


class LogReplay:
    """Iterate over the decisions of `lines`.

    Without `policy`, every policy of the log decides again, from its recorded state. With it, one policy decides in
    place of all of them: the one of that name in the log, or else a new one from `spec`. It sees the recorded load,
    which its own choices would have changed.
    """

    def __init__(self, lines: Iterable[bytes], policy: str | None = None, spec: PolicySpec | None = None) -> None:
        self._lines = lines
        self._policy = policy
        self._spec = spec
        self._runners: dict[str, PolicyRunner] = {}
        self._only: PolicyRunner | None = None
        self._rosters: dict[int, Roster] = {}
        self._prompts: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._fleets: OrderedDict[int, tuple[RequestView, FleetView]] = OrderedDict()
        self._requests: OrderedDict[str, RequestView] = OrderedDict()
        self._running = RunningPrompts()
        """Of requests that the window has."""
        self.stateless: set[str] = set()
        """Policies whose state the log does not have, or that this release cannot load: they begin without it."""

    def __iter__(self) -> Iterator[Replayed]:
        """Yield each decision.

        Raises:
            LogError: a line cannot be read, or the log has another version.
            PolicyError: the policy is neither in the log nor a rule.
        """
        for number, text in enumerate(self._lines, 1):
            try:
                line = decode(text)
                if isinstance(line, DecisionLine):
                    yield self._decide(line)
                    if line.reserved:
                        self._observe(_reservation(line))
                elif isinstance(line, EventLine):
                    self._observe(line)
                elif isinstance(line, RosterLine):
                    self._rosters[line.number] = Roster(line.ids, line.labels, line.weights)
                else:
                    self._restart(line)
            except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
                raise LogError(f"line {number}: {error}") from error

    def _restart(self, line: SnapshotLine) -> None:
        if line.version != VERSION:
            raise LogError(f"the log has version {line.version}, and this release reads version {VERSION}")
        self._prompts.clear()
        self._fleets.clear()
        self._requests.clear()
        self._rosters.clear()
        self._running.clear()
        named = {policy.name: policy for policy in line.policies}
        if self._policy is None:
            self._runners = {name: self._restored(policy) for name, policy in named.items()}
        elif self._policy in named:
            self._only = self._restored(named[self._policy])
        elif self._only is None:
            self._only = fresh(self._policy, self._spec or PolicySpec(self._policy))

    def _restored(self, policy: PolicyLine) -> PolicyRunner:
        state = policy.state
        try:
            if state is not None:
                return PolicyRunner(_PolicyUnpickler(io.BytesIO(state)).load(), policy.spec, called=policy.name)
        except Exception:  # a third party's policy, or one of another release: pickle raises errors of many types
            pass
        self.stateless.add(policy.name)
        return fresh(policy.name, policy.spec)

    def _decide(self, line: DecisionLine) -> Replayed:
        known = self._prompts[line.prompt.base][: line.prompt.kept] if line.prompt.base else ()
        hashes = known + unpacked(line.prompt.added)
        keep(self._prompts, line.number, hashes)
        request = msgspec.structs.replace(line.request, block_hashes=hashes)
        fleet = fleet_of(line, self._rosters, self._shares_of(line))
        keep(self._fleets, line.number, (request, fleet))
        keep(self._requests, request.id, request)
        runner = self._runners[line.policy] if self._only is None else self._only
        decision = runner.decide(request, fleet)
        return Replayed(
            line.policy, request, fleet, line.choice, decision.ranked[0], line.hold_s > 0.0, decision.hold_s > 0.0
        )

    def _shares_of(self, line: DecisionLine) -> RunningShare:
        """Return the running shares of a decision: as recorded, or else by the requests of the window alone."""
        recorded = {(worker, blocks): share for worker, blocks, share in line.shares}

        def share(worker: WorkerId, request: RequestView, blocks: int) -> float:
            found = recorded.get((worker, blocks))
            return self._running.share(worker, request, blocks) if found is None else found

        return share

    def _observe(self, line: EventLine) -> None:
        request = self._requests.get(line.request_id) or RequestView(line.request_id, line.model, 0, 0, ())
        self._running.observe(line.kind, line.worker, request)
        placed = fleet = None
        if line.kind is LifecycleEventKind.RESERVED and line.decision in self._fleets:
            request, fleet = self._fleets[line.decision]
            place = fleet.row_of(line.worker)
            placed = None if place is None else fleet.worker(place)
        event = LifecycleEvent(
            line.kind, request, line.worker, line.now_s, line.cached_tokens, placed, fleet, line.output_tokens
        )
        for runner in self._runners.values() if self._only is None else (self._only,):
            runner.observe(event)


def _reservation(line: DecisionLine) -> EventLine:
    request, kind = line.request, LifecycleEventKind.RESERVED
    return EventLine(kind, request.id, request.model, line.choice, line.now_s, decision=line.number)


def _member(owner: object, name: str) -> Enum:
    """Return a member of an enumeration: Python's pickles read it with `getattr`."""
    if isinstance(owner, type) and issubclass(owner, Enum):
        return owner[name]
    raise pickle.UnpicklingError(f"the state of a policy reads {name} of what is no enumeration")


class _PolicyUnpickler(pickle.Unpickler):
    """Reads the state of policies and of what they are made of, and nothing that could run other code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if (module, name) in _NAMES:
            return super().find_class(module, name)
        if module.partition(".")[0] == "policies" and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"the state of a policy names {module}.{name}, which a log must not have")


def fresh(name: str, spec: PolicySpec) -> PolicyRunner:
    """Return a policy that begins without state.

    Raises:
        PolicyError: it cannot be built.
    """
    return PolicyRunner(build_policy(spec, random.Random(0)), spec, called=name)
