"""A fleet in virtual time: the real Dispatcher and Fleet over the real engine model, without sockets or clocks."""

import heapq
import itertools
import random
from array import array
from collections import Counter
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from backends.engine.engine import Engine, EngineRequest
from backends.engine.profile import load_profile
from backends.simulated.publisher import to_wire
from backends.worker import Endpoint, KvEventSource, RankCache, ServedModel, WorkerFacts
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Residency
from router.config.model import HealthConfig
from router.metrics.registry import Registry
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.request import Request, Usage
from router.placement.tickets import Ticket
from router.residency.chain import SEED, extend_chain
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from router.residency.slot_groups import Matches
from router.residency.view import Match

BLOCK = 16


def make_prompt(ids):
    packed = array("I", ids).tobytes()
    return Prompt(len(ids), PromptSource.IDS, lambda block_tokens: extend_chain(SEED, packed, block_tokens))


def make_facts(models=("m",), ranks=1, blocks=27_500, max_model_len=None, sleeping=False, events=True):
    return WorkerFacts(
        version="0.33.0",
        models=tuple(ServedModel(model, max_model_len=max_model_len) for model in models),
        caches={rank: RankCache(BLOCK, blocks, True) for rank in range(ranks)},
        event_sources=tuple(KvEventSource(rank, f"tcp://h:{5557 + rank}") for rank in range(ranks)) if events else (),
        sleeping=sleeping,
    )


class ShadowResidency:
    """Stands in for the residency map: holds given block hashes per slot, and the hashes of reservations."""

    def __init__(self):
        self.blocks = {}
        self.reserved_blocks = {}
        self.calls = []

    def add(self, slot, worker, block_size, capacity_blocks, events):
        self.calls.append(("add", slot))
        self.blocks[slot] = Counter()

    def slot(self, slot):
        return ShadowCache(self, slot)

    def remove(self, slot):
        self.calls.append(("remove", slot))
        del self.blocks[slot]
        for key in [key for key in self.reserved_blocks if key[0] == slot]:
            del self.reserved_blocks[key]

    def match(self, prompt, slots):
        hashes = prompt.chain(BLOCK)[: max(0, prompt.tokens - 1) // BLOCK]
        return {slot: self._match(hashes, slot) for slot in slots}

    def held_below(self, prompt, slots, media):
        return {}

    def match_all(self, prompt, slots):
        tokens = np.array([match.tokens for match in self.match(prompt, slots.tolist()).values()], np.float64)
        return Matches(tokens, tokens, [Residency.EXACT] * len(slots), {})

    def _match(self, hashes, slot):
        held = self.blocks[slot]
        reserved = [blocks for (where, _), blocks in self.reserved_blocks.items() if where == slot]
        count = 0
        for block in hashes:
            if not (held[block] or any(block in blocks for blocks in reserved)):
                break
            count += 1
        return Match(count * BLOCK, 0, Residency.EXACT)


class ShadowCache:
    def __init__(self, residency, slot):
        self._residency = residency
        self._slot = slot

    def configure(self, *, block_size=None, capacity_blocks=None, events=None):
        self._residency.calls.append(("configure", self._slot))

    def tested(self, verdict, reason):
        self._residency.calls.append(("self_test", self._slot, verdict))

    def reserve(self, prompt, ticket_id, predicted_tokens=None, *, recomputes=False, found=None):
        self._residency.reserved_blocks[self._slot, ticket_id] = set(prompt.chain(BLOCK))

    def first_token(self, ticket_id):
        self._residency.calls.append(("first_token", self._slot))

    def finished(self, prompt, generated_tokens, cached_tokens, ticket_id=None):
        self._residency.calls.append(("finished", self._slot))

    def release(self, ticket_id):
        self._residency.reserved_blocks.pop((self._slot, ticket_id), None)


class VirtualFleet:
    """`workers` engines behind one dispatcher and the real residency map, which gets KV events if `events` is True.

    `run` plays requests at their arrival times (open loop), or `in_flight` at a time (closed loop).
    """

    def __init__(
        self,
        policy="marginal_cost",
        workers=4,
        speeds=None,
        seed=0,
        params=None,
        events=True,
        hold=None,
        lanes=None,
        **engine,
    ):
        self.rng = random.Random(seed)
        self.residency = ResidencyMap()
        self._publishes = events
        self._sequence = Counter()
        self.fleet = Fleet(HealthConfig(), self.residency)
        spec = PolicySpec(policy, params or {}, hold, lanes)
        self.core = DecisionCore(self.fleet, self.residency, build_policy(spec, random.Random(seed)), spec=spec)
        self.residency.on_settled.append(self.core.tickets.explained)
        profile = load_profile("llama-3.1-8b-h100")
        self.engines = {}
        draw = self.rng.randrange

        def sample(state):  # without `self`, so that the engines are freed without the garbage collector
            return draw(30_000)

        for index in range(workers):
            endpoint = self.fleet.add(Endpoint("http", "127.0.0.1", 9000 + index), 0.0)
            self.fleet.probe_succeeded(endpoint.id, make_facts(events=events), 0.0)
            if events:
                self.residency.slot(endpoint.candidates[0].slot).link_up()
                self.residency.slot(endpoint.candidates[0].slot).replay_ended(True)
            speed = speeds[index] if speeds else 1.0
            self.engines[endpoint.id] = Engine(profile, seed=seed + index, speed=speed, sample=sample, **engine)
        self._events = []
        self._order = itertools.count()
        self._busy = set()
        self.results = []
        self._open = {}
        self._requests = None

    def run(self, requests, in_flight=None, start_s=0.0, limit_s=3_600.0):
        """`requests`: (arrival_s, prompt ids, output tokens); a closed loop ignores arrivals."""
        self.results.clear()
        self._requests = None if in_flight is None else iter(requests)
        for _ in range(in_flight or 0):
            self._next(start_s)
        for at_s, ids, output in requests if in_flight is None else ():
            self._at(at_s, self._arrive, ids, output)
        while self._events:
            now_s, _, action, arguments = heapq.heappop(self._events)
            assert now_s < limit_s
            action(now_s, *arguments)
        return self

    def _at(self, at_s, action, *arguments):
        heapq.heappush(self._events, (at_s, next(self._order), action, arguments))

    def _next(self, now_s):
        following = next(self._requests, None)
        if following is not None:
            self._arrive(now_s, following[1], following[2])

    def _arrive(self, now_s, ids, output):
        name = f"r{next(self._order)}"
        prompt = make_prompt(ids)
        ticket = self.core.dispatcher.dispatch(
            Request(name, "/v1/completions", "m", prompt, prompt.tokens, now_s), now_s
        )
        assert isinstance(ticket, Ticket)
        worker = ticket.candidate.endpoint.id
        state = self.engines[worker].add(EngineRequest(name, ids, output), now_s)
        self._open[name] = ticket, state, now_s
        self._wake(now_s, worker)

    def _wake(self, now_s, worker):
        if worker not in self._busy:
            result = self.engines[worker].step(now_s)
            if result is not None:
                self._busy.add(worker)
                self._at(now_s + result.duration_s, self._step_ended, worker, result)

    def _step_ended(self, now_s, worker, result):
        if self._publishes and result.events:
            payload = msgspec.msgpack.encode([now_s, [to_wire(event) for event in result.events], 0])
            self.residency.slot(self.fleet.get(worker).candidates[0].slot).ingest(self._sequence[worker], payload)
            self._sequence[worker] += 1
        for name, _, finish in result.outputs:
            ticket, state, arrived_s = self._open[name]
            if state.output_tokens == 1:
                self.core.tickets.first_token(ticket, now_s)
            self.core.tickets.progress(ticket, state.output_tokens)
            if finish:
                self._finish(now_s, name, ticket, state, arrived_s)
        self._busy.discard(worker)
        self._wake(now_s, worker)

    def _finish(self, now_s, name, ticket, state, arrived_s):
        del self._open[name]
        self.core.tickets.finished(ticket, Usage(state.prompt_tokens, state.output_tokens, state.cached_tokens), now_s)
        self.results.append(
            SimpleNamespace(
                worker=ticket.candidate.id,
                ttft_s=ticket.record.ttft_s,
                e2e_s=now_s - arrived_s,
                cached=state.cached_tokens,
                prompt=state.prompt_tokens,
            )
        )
        if self._requests is not None:
            self._next(now_s)

    @property
    def shares(self):
        counts = Counter(result.worker for result in self.results)
        return {worker: count / len(self.results) for worker, count in counts.items()}

    @property
    def cached_share(self):
        return sum(r.cached for r in self.results) / sum(r.prompt for r in self.results)

    @property
    def mean_ttft_s(self):
        return sum(r.ttft_s for r in self.results) / len(self.results)

    @property
    def mean_e2e_s(self):
        return sum(r.e2e_s for r in self.results) / len(self.results)


@pytest.fixture
def virtual_fleet():
    return VirtualFleet


@pytest.fixture
def shadow_residency():
    return ShadowResidency()


@pytest.fixture
def facts():
    return make_facts


@pytest.fixture
def prompt():
    return make_prompt


class Rig:
    def __init__(self, residency, facts, prompt, workers=4, policy="marginal_cost", health=None, **options):
        self.residency, self.prompt = residency, prompt
        self.fleet = Fleet(health or HealthConfig(), residency)
        for port in range(1, workers + 1):
            self.fleet.add(Endpoint("http", "h", port), 0.0)
            self.fleet.probe_succeeded(f"h:{port}", facts(), 0.0)
        self.registry, self.policy_failures = Registry(), []
        policy_ = build_policy(PolicySpec(policy), random.Random(0))
        self.core = DecisionCore(
            self.fleet,
            residency,
            policy_,
            spec=PolicySpec(policy),
            decisions_kept=50,
            registry=self.registry,
            policy_failed=lambda policy, reason, first: self.policy_failures.append((policy, first)),
            **options,
        )

    def ask(self, tokens=100, start=0, **fields):
        prompt = self.prompt(range(start, start + tokens))
        return Request(f"r{start}", "/v1/completions", "m", prompt, tokens, 0.0, **fields)

    def dispatch(self, *args, now_s=0.0, **fields):
        ticket = self.core.dispatcher.dispatch(self.ask(*args, **fields), now_s)
        assert isinstance(ticket, Ticket), ticket
        return ticket

    def reserved(self):
        workers = self.core.statistics()["workers"].values()
        return [(w["running_requests"], w["queued_tokens"], w["kv_tokens"]) for w in workers]

    def assert_empty(self):
        assert set(self.reserved()) == {(0, 0, 0)}
        assert self.residency.reserved_blocks == {}


@pytest.fixture
def make_rig(shadow_residency, facts, prompt):
    def make(residency=None, **options):
        return Rig(residency or shadow_residency, facts, prompt, **options)

    return make


@pytest.fixture
def rig(make_rig):
    return make_rig()
