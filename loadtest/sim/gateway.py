"""The gateway's core on virtual time: the real Dispatcher and Fleet, with the inputs of data plane and watcher."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from backends.worker import Endpoint, KvEventSource, RankCache, ServedModel, WorkerFacts
from loadtest.sim.handover import CONNECTOR_NAME, HandoverSetting, Network
from loadtest.sim.link import EventLink
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.spec import PolicySpec
from policies.view import Policy, WorkerId
from router.config.model import HealthConfig
from router.placement.core import DecisionCore
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.residency_source import ResidencySource
from router.placement.fleet.roles import CONNECTOR
from router.placement.handover.plan import HANDOVER_FIRST_EVENT_S, LegPlan
from router.placement.held_by_worker import HeldByWorker
from router.placement.request import Request
from router.placement.tickets import Held, Queued, Reject, Ticket
from router.residency.residency_map import ResidencyMap

MODEL = "model"
LOAD_INTERVAL_S = 1.0
"""Interval at which workers' load gauges are read, as in the watcher."""
KV_EVENT_S = 0.002
"""Delay of vLLM's publisher thread."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A call that the gateway did not accept."""

    reason: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A call's ticket, and the worker that writes its answer; if two share it, the prompt's ticket and worker too."""

    gateway: SimulatedGateway
    ticket: Ticket
    worker: EngineWorker
    prefill: Ticket | None = None
    prefill_worker: EngineWorker | None = None


class SimulatedGateway:
    """Places calls on workers.

    `residency` knows which worker holds which blocks. If it is a `ResidencyMap` and `publishes_events` is set, it gets
    the workers' KV events in vLLM's wire format, late. Otherwise the workers say that they publish none. With
    `handover` the workers have roles, and KV caches move over the `network`. The gateway reads the workers' loads while
    `more` returns true; by default, while any event is pending.
    """

    def __init__(
        self,
        time: VirtualTime,
        workers: Sequence[EngineWorker],
        residency: ResidencySource,
        policy: Policy,
        spec: PolicySpec,
        *,
        kv_event_s: float = KV_EVENT_S,
        publishes_events: bool = True,
        handover: HandoverSetting | None = None,
        network: Network | None = None,
        more: Callable[[], bool] | None = None,
        queue: MakeQueue | None = None,
    ) -> None:
        self._handover = handover
        self.network = network
        config = None if handover is None else handover.config
        self.fleet = Fleet(HealthConfig(), residency, connector=None if config is None else config.connector)
        self.core = DecisionCore(self.fleet, residency, policy, spec=spec, handover=config)
        self.time = time
        self._more = more or (lambda: bool(time.pending))
        self._workers: dict[str, EngineWorker] = {}
        published = residency if publishes_events and isinstance(residency, ResidencyMap) else None
        for number, worker in enumerate(workers):
            endpoint = self._join(number, worker, published is not None)
            if published is not None:
                slot = endpoint.candidates[0].slot
                worker.on_events.append(EventLink(time, published, slot, kv_event_s).published)
        self._held_calls = HeldCalls(time, self._dispatch)
        self.core.tickets.on_prefills_done.append(self._held_calls.relieved)
        self.queue = None if queue is None else queue(self)
        time.after(LOAD_INTERVAL_S, self._read_loads)

    @property
    def workers(self) -> Collection[EngineWorker]:
        return self._workers.values()

    def hear(self) -> None:
        """Count the tokens that the streams have received; it suffices to do so before each decision."""
        for worker in self._workers.values():
            worker.catch_up()

    def place(self, name: str, session: str, call: Asked) -> Placed | Rejected | HeldCall:
        """Choose a worker for a call that has just arrived, now or later."""
        prompt = call.prompt()
        request = Request(
            name,
            "/v1/completions",
            MODEL,
            prompt,
            prompt.tokens,
            self.time.now_s,
            max_tokens=call.max_tokens,
            session_id=session,
        )
        if self.queue is not None:
            self.hear()
            return self.queue.arrived(request)
        answer = self._dispatch(request)
        return self._held_calls.enter(request, answer) if isinstance(answer, Held) else answer

    def place_alone(self, placed: Placed, reason: str) -> Placed | Rejected:
        """Choose one worker for a call that two could not share."""
        assert placed.prefill is not None
        now_s = self.time.now_s
        self.core.tickets.not_handed_over(placed.prefill, now_s, reason)
        if not self.core.dispatcher.run_plain(placed.ticket, reason, now_s):
            return Rejected(reason)
        answer = self._one_worker(placed.ticket.request, may_hold=False)
        assert not isinstance(answer, Held)
        return answer

    def limit_s(self) -> float:
        """Return the time after its prefill within which a shared call's answer must begin."""
        assert self._handover is not None
        config = self._handover.config
        return min(HANDOVER_FIRST_EVENT_S, config.lease_s - config.lease_margin_s)

    def _dispatch(self, request: Request) -> Placed | Rejected | Held:
        self.hear()
        shared = self._two_workers(request)
        return self._one_worker(request, may_hold=True) if shared is None else shared

    def _two_workers(self, request: Request) -> Placed | None:
        """Reserve a pair of workers if the rule wants it."""
        if self._handover is None:
            return None
        now_s = self.time.now_s
        plan = self.core.planner.pair(request, now_s, even_if_dearer=self._handover.even_if_dearer)
        if not isinstance(plan, LegPlan):
            return None
        decode = self.core.planner.reserve(request, plan, now_s)
        prefill = decode.prefill
        assert prefill is not None
        return Placed(self, decode, self._worker_of(decode), prefill, self._worker_of(prefill))

    def _worker_of(self, ticket: Ticket) -> EngineWorker:
        return self._workers[ticket.candidate.endpoint.id]

    def _one_worker(self, request: Request, *, may_hold: bool) -> Placed | Rejected | Held:
        answer = self.core.dispatcher.dispatch(request, self.time.now_s, may_hold=may_hold)
        return answer if isinstance(answer, Held) else self.placed(answer)

    def placed(self, answer: Ticket | Queued | Reject) -> Placed | Rejected:
        """Return the dispatcher's answer as a call gets it."""
        if isinstance(answer, Ticket):
            return Placed(self, answer, self._worker_of(answer))
        return Rejected(answer.error.message if isinstance(answer, Reject) else answer.reason)

    def statistics(self) -> dict[str, object]:
        self.hear()
        return self.core.statistics()

    def _join(self, number: int, worker: EngineWorker, publishes: bool) -> FleetEndpoint:
        endpoint = self.fleet.add(Endpoint("http", "127.0.0.1", 9000 + number), self.time.now_s)
        self.fleet.probe_succeeded(endpoint.id, facts_of(worker, publishes), self.time.now_s)
        if self._handover is not None and number < len(self._handover.roles):
            self.fleet.describe(endpoint.id, {CONNECTOR: CONNECTOR_NAME}, 1.0, None, self._handover.roles[number])
        self._workers[endpoint.id] = worker
        return endpoint

    def _read_loads(self) -> None:
        self.hear()
        for endpoint_id, worker in self._workers.items():
            self.fleet.load_reported(endpoint_id, worker.load(), self.time.now_s)
        if self._more():
            self.time.after(LOAD_INTERVAL_S, self._read_loads)


class HeldCall:
    """A call that waits in the gateway. `heard` gets its place or rejection, unless its client leaves."""

    __slots__ = ("_leaves", "heard", "held", "request")

    def __init__(self, leaves: Callable[[HeldCall], bool], request: Request, held: Held | None = None) -> None:
        self._leaves = leaves
        self.request = request
        self.held = held
        self.heard: list[Callable[[Placed | Rejected], None]] = []

    def leave(self) -> bool:
        """End the wait, because the client closed its connection; return False if the call no longer waits."""
        return self._leaves(self)

    def hear(self, answer: Placed | Rejected) -> None:
        for heard in self.heard:
            heard(answer)


class CallQueue(Protocol):
    """Where calls wait."""

    def arrived(self, request: Request) -> Placed | Rejected | HeldCall:
        """Place a call that has just arrived, refuse it, or let it wait."""


MakeQueue: TypeAlias = Callable[[SimulatedGateway], CallQueue]


class HeldCalls:
    """Offers held calls to the dispatcher again, on virtual time, in the order of `router.requests.queues.hold`."""

    def __init__(self, time: VirtualTime, dispatch: Callable[[Request], Placed | Rejected | Held]) -> None:
        self._time = time
        self._dispatch = dispatch
        self.waiting: HeldByWorker[HeldCall] = HeldByWorker()

    def enter(self, request: Request, held: Held) -> HeldCall:
        call = HeldCall(self.waiting.leave, request, held)
        self._wait(call, held)
        return call

    def relieved(self, worker: WorkerId) -> None:
        """Offer the calls held for a worker that has no prefill left.

        The dispatcher calls this in the middle of its own work, so the offer follows as an event of its own.
        """
        if self.waiting.first(worker):
            self._time.after(0.0, self._offer, worker)

    def _wait(self, call: HeldCall, held: Held) -> None:
        call.held = held
        self.waiting.enter(call, held.worker)
        self._time.at(held.until_s, self._expired, call, held)

    def _offer(self, worker: WorkerId) -> None:
        for call in self.waiting.first(worker):
            if self._again(call) == worker:  # the worker has a prefill again, so the others wait on
                return

    def _expired(self, call: HeldCall, held: Held) -> None:
        if call.held is held:
            self._again(call)

    def _again(self, call: HeldCall) -> WorkerId | None:
        """Dispatch a held call again; return its worker if one worker serves it."""
        if not call.leave():
            return None
        answer = self._dispatch(call.request)
        if isinstance(answer, Held):
            self._wait(call, answer)
            return None
        call.hear(answer)
        return answer.ticket.candidate.id if isinstance(answer, Placed) and answer.prefill is None else None


def facts_of(worker: EngineWorker, publishes: bool) -> WorkerFacts:
    """Return the facts that a probe of the worker would find."""
    engine = worker.engine
    return WorkerFacts(
        models=(ServedModel(MODEL),),
        caches={0: RankCache(engine.block_size, engine.num_blocks, prefix_caching=True)},
        event_sources=(KvEventSource(0, f"tcp://{worker.name}:5557"),) if publishes else (),
    )
