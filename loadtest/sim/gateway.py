"""The gateway's core on virtual time: the real Dispatcher and Fleet, with the inputs of data plane and watcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from backends.worker import Endpoint, KvEventSource, RankCache, ServedModel, WorkerFacts
from loadtest.sim.handover import HandoverSetting, handover_rule
from loadtest.sim.held import HeldCall, HeldCalls
from loadtest.sim.link import EventLink
from loadtest.sim.network import Network
from loadtest.sim.placements import AnyPlacement, GatewayPlacement, Rejected, SharedPlacement
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.spec import PolicySpec
from policies.view import Policy
from router.config.model import HealthConfig
from router.placement.dispatcher import Dispatcher, Held, Queued, Reject, Ticket
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.residency_source import ResidencySource
from router.placement.fleet.roles import CONNECTOR
from router.placement.load.shared_load import SharedLedger
from router.placement.request import Request
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
    `ledger` the gateway is one of several that share these workers. With `handover` the workers have roles, and KV
    caches move over the `network`. The gateway reads the workers' loads while `more` returns true; by default, while
    any event is pending.
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
        handover: HandoverSetting | None = None,
        network: Network | None = None,
        more: Callable[[], bool] | None = None,
        seed: int = 0,
    ) -> None:
        self._usage_share = usage_share
        self._usage_draws = Random(f"usage {seed}")
        self._handover = handover
        self._network = network
        self._pays = handover_rule("never" if handover is None else handover.rule)
        config = None if handover is None else handover.config
        self.fleet = Fleet(HealthConfig(), residency, connector=None if config is None else config.connector)
        self.dispatcher = Dispatcher(self.fleet, residency, policy, spec=spec, ledger=ledger, handover=config)
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
        self._held_calls = HeldCalls(time, self._dispatch)
        self.dispatcher.on_prefills_done.append(self._held_calls.relieved)
        time.after(delays.load_interval_s, self._read_loads)

    @property
    def time(self) -> VirtualTime:
        return self._time

    def tells_usage(self) -> bool:
        return self._usage_share >= 1.0 or self._usage_draws.random() < self._usage_share

    def hear(self) -> None:
        """Count the tokens that the streams have received; it suffices to do so before each decision."""
        for worker in self._workers.values():
            worker.catch_up()

    def place(self, name: str, session: str, call: Asked) -> AnyPlacement | HeldCall:
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

    def place_alone(self, request: Request) -> GatewayPlacement | Rejected:
        answer = self._one_worker(request, may_hold=False)
        assert not isinstance(answer, Held)
        return answer

    def _dispatch(self, request: Request) -> AnyPlacement | Held:
        self.hear()
        shared = self._two_workers(request)
        return self._one_worker(request, may_hold=True) if shared is None else shared

    def _two_workers(self, request: Request) -> SharedPlacement | None:
        """Reserve a pair of workers if the rule wants it."""
        if self._handover is None or self._network is None:
            return None
        now_s = self._time.now_s
        planned = self.dispatcher.plan_handover(request, now_s, even_if_dearer=True)
        if planned is None or isinstance(planned, Queued | Reject) or not self._pays(planned):
            return None
        tickets = self.dispatcher.hand_over(request, planned, now_s)
        workers = self._worker_of(tickets.prefill), self._worker_of(tickets.decode)
        config = self._handover.config
        limit_s = min(config.first_event_s, config.lease_s - config.lease_margin_s)
        return SharedPlacement(self, tickets, workers, self._network, limit_s)

    def _worker_of(self, ticket: Ticket) -> EngineWorker:
        return self._workers[ticket.candidate.endpoint.id]

    def _one_worker(self, request: Request, *, may_hold: bool) -> GatewayPlacement | Rejected | Held:
        answer = self.dispatcher.dispatch(request, self._time.now_s, may_hold=may_hold)
        if isinstance(answer, Ticket):
            return GatewayPlacement(self, answer, self._worker_of(answer))
        if isinstance(answer, Held):
            return answer
        return Rejected(answer.error.message if isinstance(answer, Reject) else answer.reason)

    def statistics(self) -> dict[str, object]:
        self.hear()
        return self.dispatcher.statistics()

    def _join(self, number: int, worker: EngineWorker, publishes: bool) -> FleetEndpoint:
        endpoint = self.fleet.add(Endpoint("http", "127.0.0.1", 9000 + number), self._time.now_s)
        self.fleet.probe_succeeded(endpoint.id, facts_of(worker, publishes), self._time.now_s)
        if self._handover is not None and number < len(self._handover.roles):
            labels = {CONNECTOR: self._handover.connector}
            self.fleet.describe(endpoint.id, labels, 1.0, None, self._handover.roles[number])
        self._workers[endpoint.id] = worker
        return endpoint

    def _read_loads(self) -> None:
        self.hear()
        for endpoint_id, worker in self._workers.items():
            self.fleet.load_reported(endpoint_id, worker.load(), self._time.now_s)
        if self._more():
            self._time.after(self._delays.load_interval_s, self._read_loads)


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
