"""The types that a policy receives and returns. All are immutable.

`Policy` is what to write, and `Decision` what it returns. It receives a `RequestView` and a `FleetView`; how a fleet is
held follows at the end (`Roster`, `Columns`).

Most are msgspec structs because views are built for every candidate of every request. With 64 candidates, frozen
dataclasses would cost more than the rest of a decision. `FleetView` holds the facts as arrays, because one object for
each of 512 candidates would cost more still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.records import RequestView as RequestView
from policies.records import Residency as Residency
from policies.records import WorkerId as WorkerId
from policies.records import WorkerView as WorkerView

Column: TypeAlias = NDArray[np.float64]
"""One fact of all candidates, in their order. Token and request counts are whole numbers."""


RunningShare: TypeAlias = Callable[[WorkerId, RequestView, int], float]
"""Returns the share of a worker's running requests whose prompts begin with the same number of blocks as a request."""


class Policy(Protocol):
    """A routing rule. Each process has one object, built from its parameters and a seeded `random.Random`.

    `decide` must not change the policy's state, because `explain` calls it, too. It may draw from the random source.
    State changes in `observe`, which is optional and receives every lifecycle event. The optional `statistics()`
    returns a dict of JSON values for operators. The optional class attribute `terms` describes each term of the cost
    in one line, and `wrapped = True` puts `hold` and `lanes` around the rule by default. With the class attribute
    `prices_in_seconds = True` a rule adds `FleetView.lane_price_s` to its costs.
    """

    def decide(self, request: RequestView, fleet: FleetView) -> Decision: ...


class Decision(msgspec.Struct, frozen=True):
    """A ranking. `ranked` holds every candidate, best first. The first is the choice; the others are the alternatives.

    `costs` are the costs of the first workers in `ranked`, in the policy's own `unit`; lower is better. It is empty for
    policies without a cost, and has none for workers that prefill lanes left out and ranked last. `terms` holds the
    named parts of each worker's cost. `policies.ranking` makes decisions from arrays, with a ranking that is sorted
    when it is read.

    With `hold_s` above 0 the request waits in the gateway. The policy is asked again after that time or, with
    `until_prefills_done`, as soon as the first worker of `ranked` has no prefill left. A request that cannot wait is
    placed at once: an earlier attempt has failed, or the limit of held requests is reached.
    """

    ranked: Sequence[WorkerId]
    reason: str
    costs: Sequence[float] = ()
    unit: str = ""
    terms: Mapping[WorkerId, Mapping[str, float]] = msgspec.field(default_factory=dict)
    hold_s: float = 0.0
    until_prefills_done: bool = True


class LifecycleEventKind(StrEnum):
    """The lifecycle events that a stateful policy can follow."""

    RESERVED = "reserved"
    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    FAILED = "failed"


class LifecycleEvent(msgspec.Struct, frozen=True):
    """An event in the life of `request` on `worker` at `now_s`.

    `cached_tokens` is the number that a finished response reported, `output_tokens` the length of its answer. `placed`
    and `fleet` are set for `RESERVED`: the views of the chosen worker and of all candidates at the decision, without
    the new request. They are None for a part of a KV handover, about which no policy decided.
    """

    kind: LifecycleEventKind
    request: RequestView
    worker: WorkerId
    now_s: float
    cached_tokens: int | None = None
    placed: WorkerView | None = None
    fleet: FleetView | None = None
    output_tokens: int | None = None


FACTS: dict[str, type[int] | type[float]] = {
    field.name: field.type
    for field in msgspec.structs.fields(WorkerView)
    if field.type in (int, float) and field.name != "weight"
}
"""The facts of `WorkerView` that are one number per worker, with its type. As arrays they are one `Column` each."""


class Fact:
    """A fact of `WorkerView` as an attribute of `FleetView`: an array over the candidates."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, fleet: FleetView, owner: object = None) -> Column:
        column = fleet._arrays.get(self.name)
        if column is None:
            column = fleet._arrays[self.name] = np.array(
                [getattr(view, self.name) for view in fleet.workers], np.float64
            )
        return column


class FleetView:
    """The candidates for one request: never empty, in the order in which they joined.

    Every fact of `WorkerView` is an array over the candidates: `fleet.queued_tokens + fleet.uncached_tokens` is a cost
    of each. `fleet.workers` holds the views of single candidates. A large fleet is built as arrays and a small one as
    views (`is_small`), and the other form is made when it is read first.
    """

    __slots__ = ("_arrays", "_columns", "_roster", "_running_share", "_workers", "is_small", "lane_price_s", "now_s")

    cached_tokens: ClassVar[Fact] = Fact("cached_tokens")
    uncached_tokens: ClassVar[Fact] = Fact("uncached_tokens")
    queued_tokens: ClassVar[Fact] = Fact("queued_tokens")
    running_requests: ClassVar[Fact] = Fact("running_requests")
    kv_tokens: ClassVar[Fact] = Fact("kv_tokens")
    kv_capacity_tokens: ClassVar[Fact] = Fact("kv_capacity_tokens")
    queue_wait_s: ClassVar[Fact] = Fact("queue_wait_s")
    prefill_s: ClassVar[Fact] = Fact("prefill_s")
    utilisation: ClassVar[Fact] = Fact("utilisation")
    error_s: ClassVar[Fact] = Fact("error_s")
    queued_requests: ClassVar[Fact] = Fact("queued_requests")
    decode_externality_s: ClassVar[Fact] = Fact("decode_externality_s")
    kv_wait_s: ClassVar[Fact] = Fact("kv_wait_s")
    idle_tokens: ClassVar[Fact] = Fact("idle_tokens")

    def __init__(
        self,
        now_s: float,
        workers: tuple[WorkerView, ...] | None = None,
        roster: Roster | None = None,
        columns: Columns | None = None,
        running_share: RunningShare | None = None,
    ) -> None:
        self.now_s = now_s
        self.is_small = columns is None
        """Whether the fleet was built as views, so that a loop over `workers` costs less than arrays."""
        self._workers = workers
        self._roster = roster
        self._columns = columns
        self._running_share = running_share
        self._arrays: dict[str, Column] = {} if columns is None else columns.arrays
        """A fleet built as views makes each array when it is read first."""
        self.lane_price_s: Sequence[float] | Column = ()
        """The price of each candidate by `policies.wrappers.prefill_lanes`, for rules that price in seconds; empty: no
        lane."""

    def __len__(self) -> int:
        return len(self._workers) if self._workers is not None else len(self.roster.ids)

    @property
    def roster(self) -> Roster:
        """Ids, labels and weights of the candidates."""
        if self._roster is None:
            workers = self.workers
            self._roster = Roster(
                tuple([view.id for view in workers]),
                [view.labels for view in workers],
                [view.weight for view in workers],
            )
        return self._roster

    @property
    def equal_weights(self) -> bool:
        if self._workers is None or self._roster is not None:
            return self.roster.equal_weights
        return len({view.weight for view in self._workers}) <= 1

    @property
    def ids(self) -> tuple[WorkerId, ...]:
        return self.roster.ids

    @property
    def workers(self) -> tuple[WorkerView, ...]:
        if self._workers is None:
            self._workers = tuple([self.worker(place) for place in range(len(self.roster.ids))])
        return self._workers

    @property
    def has_views(self) -> bool:
        return self._workers is not None

    def worker(self, place: int) -> WorkerView:
        if self._workers is not None:
            return self._workers[place]
        columns, roster = self.columns, self.roster
        facts: dict[str, Any] = {fact: kind(columns.arrays[fact].item(place)) for fact, kind in FACTS.items()}
        return WorkerView(
            id=roster.ids[place],
            residency=columns.residency[place],
            learned=columns.learned,
            cached_tokens_by_tier=columns.cached_tokens_by_tier.get(place),
            labels=roster.labels[place],
            weight=roster.weights[place],
            **facts,
        )

    def running_share(self, worker: WorkerId, request: RequestView, blocks: int) -> float:
        """Return the share of the worker's running requests that begin with the same `blocks` as `request`, 0 to 1.

        It costs a comparison for each request with the same first block, so it is no column. Read it while deciding:
        it describes the present. It is 0 where it is not known, and for a prompt of fewer blocks.
        """
        return 0.0 if self._running_share is None else self._running_share(worker, request, blocks)

    def row_of(self, worker: WorkerId) -> int | None:
        if self._workers is None:
            return self.roster.places.get(worker)
        for place, view in enumerate(self._workers):
            if view.id == worker:
                return place
        return None

    @property
    def columns(self) -> Columns:
        if self._columns is None:
            workers = self.workers
            tiers = [(place, view.cached_tokens_by_tier) for place, view in enumerate(workers)]
            self._columns = Columns(
                {fact: getattr(self, fact) for fact in FACTS},
                [view.residency for view in workers],
                self.learned,
                {place: found for place, found in tiers if found is not None},
            )
        return self._columns

    @property
    def learned(self) -> bool:
        """Whether the times come from learned speeds, and not from the prior (`WorkerView`)."""
        return self._workers[0].learned if self._workers is not None else self.columns.learned

    def __deepcopy__(self, memo: dict[int, object]) -> FleetView:
        return self

    def __reduce__(self) -> tuple[type[FleetView], tuple[object, ...]]:
        return (
            FleetView,
            (self.now_s, self.workers) if self.is_small else (self.now_s, None, self.roster, self.columns),
        )

    def with_facts(self, workers: tuple[WorkerView, ...] | None, columns: Columns | None) -> FleetView:
        """Return a view of the same candidates with other facts."""
        fleet = FleetView(self.now_s, workers, self._roster, columns, self._running_share)
        fleet.lane_price_s = self.lane_price_s
        return fleet

    def copied(
        self, lane_price_s: Sequence[float] | Column | None = None, running_share: RunningShare | None = None
    ) -> FleetView:
        """Return a view of the same facts, with other prices of lanes or another source of running shares."""
        share = self._running_share if running_share is None else running_share
        copy = FleetView(self.now_s, self._workers, self._roster, self._columns, share)
        copy.is_small, copy._arrays = self.is_small, self._arrays
        copy.lane_price_s = self.lane_price_s if lane_price_s is None else lane_price_s
        return copy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FleetView) and (self.now_s, self.workers) == (other.now_s, other.workers)

    def __hash__(self) -> int:
        return hash((self.now_s, self.ids))


class Roster:
    """The candidates of a fleet view: their ids, labels and weights, in the order in which they joined.

    Decisions over an unchanged fleet share one roster. Without `weights`, all are 1.
    """

    __slots__ = ("_places", "equal_weights", "ids", "labels", "weights")

    def __init__(
        self, ids: tuple[WorkerId, ...], labels: Sequence[Mapping[str, str]], weights: Sequence[float] = ()
    ) -> None:
        self.ids = ids
        self.labels = labels
        self.weights: Sequence[float] = weights or (1.0,) * len(ids)
        self.equal_weights = len(set(self.weights)) <= 1
        """Whether all have the same weight."""
        self._places: dict[WorkerId, int] = {}

    @property
    def places(self) -> Mapping[WorkerId, int]:
        if not self._places:
            self._places = {worker: place for place, worker in enumerate(self.ids)}
        return self._places

    def __deepcopy__(self, memo: dict[int, object]) -> Roster:
        return self

    def __reduce__(self) -> tuple[type[Roster], tuple[object, ...]]:
        return Roster, (self.ids, self.labels, self.weights)


class Columns(msgspec.Struct, frozen=True):
    """The facts of `WorkerView`, in the order of a roster. `arrays` has one array for each of `FACTS`.

    `cached_tokens_by_tier` is by place, for the candidates where it is known.
    """

    arrays: dict[str, Column]
    residency: Sequence[Residency]
    learned: bool
    cached_tokens_by_tier: Mapping[int, Mapping[str, int]]
