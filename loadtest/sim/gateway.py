"""The gateway's core on virtual time: the real Dispatcher and Fleet, with the inputs of data plane and watcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from backends.engine.engine import EngineRequestState
from backends.worker import Endpoint, KvEventSource, RankCache, ServedModel, WorkerFacts
from loadtest.sim.link import EventLink
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.spec import PolicySpec
from policies.view import Policy, WorkerId
from router.config.model import HealthConfig
from router.placement.dispatcher import Dispatcher, Held, Reject, Ticket
from router.placement.endpoints import FleetEndpoint
from router.placement.fleet import Fleet
from router.placement.hold_queue import HeldByWorker
from router.placement.lifecycle_events import Request, Usage
from router.placement.residency_source import ResidencySource
from router.placement.shared_load import SharedLedger
from router.residency.residency_map import ResidencyMap

MODEL = "model"


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of a loopback or rack network, vLLM's publisher thread and the watcher's default interval, in seconds.

    `kv_lost_share` is the share of KV event batches that get lost; with `kv_replays` the publisher sends them again.
    """

    request_s: float = 0.0005
    response_s: float = 0.0005
    kv_event_s: float = 0.002
    load_interval_s: float = 1.0
    kv_lost_share: float = 0.0
    kv_replays: bool = True


class SimulatedGateway:
    """Places calls and passes their lifecycle events to the dispatcher.

    `residency` knows which worker holds which blocks. If it is a `ResidencyMap` and `publishes_events` is set, it gets
    the workers' KV events in vLLM's wire format, late and with the losses of `Delays`; `seed` draws the lost batches.
    Otherwise the workers say that they publish none. `usage_share` is the share of responses that report usage. With a
    `ledger` the gateway is one of several that share these workers. It reads the workers' loads while `more` returns
    true; by default, while any event is pending.
    """

    def __init__(
        self,
        time: VirtualTime,
        workers: Sequence[EngineWorker],
        residency: ResidencySource,
        policy: Policy,
        spec: PolicySpec,
        *,
        delays: Delays,
        publishes_events: bool = True,
        usage_share: float = 1.0,
        ledger: SharedLedger | None = None,
        more: Callable[[], bool] | None = None,
        seed: int = 0,
    ) -> None:
        self._usage_share = usage_share
        self._usage_draws = Random(f"usage {seed}")
        self.fleet = Fleet(HealthConfig(), residency)
        self.dispatcher = Dispatcher(self.fleet, residency, policy, spec=spec, ledger=ledger)
        self._time = time
        self._delays = delays
        self._more = more or (lambda: bool(time.pending))
        self._workers: dict[str, EngineWorker] = {}
        published = residency if publishes_events and isinstance(residency, ResidencyMap) else None
        for number, worker in enumerate(workers):
            endpoint = self._join(number, worker, published is not None)
            if published is not None:
                slot = endpoint.candidates[0].slot
                lost = _losses(delays.kv_lost_share, Random(f"{seed} {number}"))
                link = EventLink(time, published, slot, delays.kv_event_s, lost=lost, replays=delays.kv_replays)
                worker.on_events.append(link.published)
        self._held_calls = _HeldCalls(time, self._dispatch)
        self.dispatcher.on_prefills_done.append(self._held_calls.relieved)
        time.after(delays.load_interval_s, self._read_loads)

    @property
    def time(self) -> VirtualTime:
        """The virtual clock."""
        return self._time

    def tells_usage(self) -> bool:
        """Draw whether the answer that ends now reports its usage."""
        return self._usage_share >= 1.0 or self._usage_draws.random() < self._usage_share

    def hear(self) -> None:
        """Count the tokens that the streams have received; it suffices to do so before each decision."""
        for worker in self._workers.values():
            worker.catch_up()

    def place(self, name: str, session: str, call: Asked) -> GatewayPlacement | Rejected | HeldCall:
        """Choose a worker for a call that has just arrived, now or later."""
        prompt = call.prompt()
        request = Request(
            name,
            "/v1/completions",
            MODEL,
            prompt,
            prompt.tokens,
            self._time.now_s,
            max_tokens=call.max_tokens,
            session_id=session,
        )
        answer = self._dispatch(request)
        return self._held_calls.enter(request, answer) if isinstance(answer, Held) else answer

    def _dispatch(self, request: Request) -> GatewayPlacement | Rejected | Held:
        self.hear()
        answer = self.dispatcher.dispatch(request, self._time.now_s, may_hold=True)
        if isinstance(answer, Ticket):
            return GatewayPlacement(self, answer, self._workers[answer.candidate.endpoint.id])
        if isinstance(answer, Held):
            return answer
        return Rejected(answer.error.message if isinstance(answer, Reject) else answer.reason)

    def statistics(self) -> dict[str, object]:
        """Return the dispatcher's statistics."""
        self.hear()
        return self.dispatcher.statistics()

    def _join(self, number: int, worker: EngineWorker, publishes: bool) -> FleetEndpoint:
        endpoint = self.fleet.add(Endpoint("http", "127.0.0.1", 9000 + number), self._time.now_s)
        self.fleet.probe_succeeded(endpoint.id, facts_of(worker, publishes), self._time.now_s)
        self._workers[endpoint.id] = worker
        return endpoint

    def _read_loads(self) -> None:
        self.hear()
        for endpoint_id, worker in self._workers.items():
            self.fleet.load_reported(endpoint_id, worker.load(), self._time.now_s)
        if self._more():
            self._time.after(self._delays.load_interval_s, self._read_loads)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A call that the gateway did not accept."""

    reason: str


class HeldCall:
    """A call that waits in the gateway. `heard` gets its placement or rejection, unless its client leaves."""

    __slots__ = ("_among", "heard", "held", "request")

    def __init__(self, among: _HeldCalls, request: Request, held: Held) -> None:
        self._among = among
        self.request = request
        self.held = held
        self.heard: list[Callable[[GatewayPlacement | Rejected], None]] = []

    def leave(self) -> bool:
        """End the wait, because the client closed its connection; return False if the call no longer waits."""
        return self._among.leave(self)


class _HeldCalls:
    """Offers held calls to the dispatcher again, on virtual time, in the order of `router.gateway.queues.hold`."""

    def __init__(self, time: VirtualTime, dispatch: Callable[[Request], GatewayPlacement | Rejected | Held]) -> None:
        self._time = time
        self._dispatch = dispatch
        self._waiting: HeldByWorker[HeldCall] = HeldByWorker()

    def enter(self, request: Request, held: Held) -> HeldCall:
        """Let a call wait."""
        call = HeldCall(self, request, held)
        self._wait(call)
        return call

    def leave(self, call: HeldCall) -> bool:
        """End a call's wait; return False if it did not wait."""
        return self._waiting.leave(call)

    def relieved(self, worker: WorkerId) -> None:
        """Offer the calls held for a worker that has no prefill left.

        The dispatcher calls this in the middle of its own work, so the offer follows as an event of its own.
        """
        if self._waiting.first(worker):
            self._time.after(0.0, self._offer, worker)

    def _wait(self, call: HeldCall) -> None:
        self._waiting.enter(call, call.held.worker)
        self._time.at(call.held.until_s, self._expired, call, call.held)

    def _offer(self, worker: WorkerId) -> None:
        for call in self._waiting.first(worker):
            if self._again(call) == worker:  # the worker has a prefill again, so the others wait on
                return

    def _expired(self, call: HeldCall, held: Held) -> None:
        if call.held is held:
            self._again(call)

    def _again(self, call: HeldCall) -> WorkerId | None:
        """Dispatch a held call again; return its worker if it was placed."""
        if not self.leave(call):
            return None
        answer = self._dispatch(call.request)
        if isinstance(answer, Held):
            call.held = answer
            self._wait(call)
            return None
        for heard in call.heard:
            heard(answer)
        return answer.worker_id if isinstance(answer, GatewayPlacement) else None


class GatewayPlacement:
    """The ticket of a placed call, which passes the call's lifecycle events to the dispatcher."""

    __slots__ = ("_gateway", "_progress", "_ticket", "_time", "worker")

    def __init__(self, gateway: SimulatedGateway, ticket: Ticket, worker: EngineWorker) -> None:
        self._gateway = gateway
        self._progress = gateway.dispatcher.progress
        self._time = gateway.time
        self._ticket = ticket
        self.worker = worker

    @property
    def worker_id(self) -> WorkerId:
        """The candidate's id in the gateway."""
        return self._ticket.candidate.id

    @property
    def predicted_tokens(self) -> int | None:
        """Predicted cached tokens, which the dispatcher compares with those reported."""
        return self._ticket.predicted_cached_tokens

    def progressed(self, tokens: int) -> None:
        """Report that the stream has `tokens` tokens."""
        now_s = self._time.now_s
        if tokens == 1:
            self._gateway.dispatcher.first_token(self._ticket, now_s)
        self._progress(self._ticket, tokens)

    def finished(self, state: EngineRequestState) -> None:
        """Report the end of the stream, perhaps with a usage block."""
        usage = Usage()
        if self._gateway.tells_usage():
            usage = Usage(state.prompt_tokens, state.output_tokens, state.cached_tokens)
        self._gateway.dispatcher.finished(self._ticket, usage, self._gateway.time.now_s)

    def refused(self) -> None:
        """Report that the worker answered 400, because the request does not fit there."""
        self._gateway.dispatcher.finished(self._ticket, Usage(), self._gateway.time.now_s, status=400)

    def left(self) -> None:
        """Report that the client closed its connection."""
        self._gateway.dispatcher.cancelled(self._ticket, self._gateway.time.now_s)


def _losses(share: float, rng: Random) -> Callable[[], bool] | None:
    return (lambda: rng.random() < share) if share else None


def facts_of(worker: EngineWorker, publishes: bool) -> WorkerFacts:
    """Return the facts that a probe of the worker would find."""
    engine = worker.engine
    return WorkerFacts(
        models=(ServedModel(MODEL),),
        caches={0: RankCache(engine.block_size, engine.num_blocks, prefix_caching=True)},
        event_sources=(KvEventSource(0, f"tcp://{worker.name}:5557"),) if publishes else (),
    )
