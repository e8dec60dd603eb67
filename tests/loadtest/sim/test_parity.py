"""One recorded trace through the gateway's own core on a fake clock, and through the simulator: the same decisions.

What the simulator's gateway is told is taped: workers and their probes, KV events on vLLM's wire, load reports, and the
edges of every request, with prompts as token ids. The tape is then played to the core that `warmroute serve` puts
together (`router.app.GatewayProcess`), which is told of every token at its own time, as a data plane would tell it.
"""

from array import array
from dataclasses import replace
from random import Random

import pytest

from loadtest.sim import gateway as simulated
from loadtest.sim.clients import Clients
from loadtest.sim.gateway import SimulatedGateway
from loadtest.sim.outcome import Ending
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.app import GatewayProcess
from router.config.model import Config, PolicyConfig
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.request import Request
from router.placement.tickets import Held
from router.residency.chain import SEED, extend_chain
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from tests.support.simulated_conversations import LONG_TAIL, conversations, small_workers

pytestmark = pytest.mark.source_only  # parts are replaced by classes derived from them

WORKERS = 4
POLICY_SEED = 5


class Tape:
    """(time, what, arguments) in the order in which they happened, and each request's decision."""

    def __init__(self, time):
        self.time, self.entries, self.decisions = time, [], {}

    def __call__(self, what, *args):
        self.entries.append((self.time.now_s, what, args))


def taped(tape, ids):
    """The simulator's parts, each of which tapes what it is told."""

    class TapedCache:
        def __init__(self, cache):
            self._cache = cache

        def __getattr__(self, name):
            return getattr(self._cache, name)

        def link_up(self):
            tape("link_up", self._cache.slot)
            return self._cache.link_up()

        def replay_ended(self, ok):
            tape("replay_ended", self._cache.slot, ok)
            return self._cache.replay_ended(ok)

        def ingest(self, seq, payload, *, replayed=False):
            tape("ingest", self._cache.slot, seq, payload, replayed)
            return self._cache.ingest(seq, payload, replayed=replayed)

    class TapedResidency(ResidencyMap):
        def slot(self, slot):
            return TapedCache(super().slot(slot))

    class TapedFleet(Fleet):
        def add(self, endpoint, now_s):
            tape("add", endpoint)
            return super().add(endpoint, now_s)

        def probe_succeeded(self, endpoint_id, facts, now_s):
            tape("probe", endpoint_id, facts)
            return super().probe_succeeded(endpoint_id, facts, now_s)

        def load_reported(self, endpoint_id, report, now_s):
            tape("load", endpoint_id, report)
            return super().load_reported(endpoint_id, report, now_s)

    class TapedCore(DecisionCore):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            dispatch, tickets = self.dispatcher.dispatch, self.tickets

            def dispatched(request, now_s, **others):
                said = request.id, request.path, request.model, request.arrived_s, request.max_tokens
                tape("dispatch", (*said, request.session_id), ids[request.id])
                answer = dispatch(request, now_s, **others)
                tape.decisions.setdefault(request.id, []).append(decision(answer))
                return answer

            def taping(real, what):
                def taped(ticket, *args):
                    tape(what, ticket.request.id, *args[:-1])
                    real(ticket, *args)

                return taped

            self.dispatcher.dispatch = dispatched
            tickets.first_token = taping(tickets.first_token, "first_token")
            tickets.cancelled = taping(tickets.cancelled, "cancelled")
            tickets.finished = taping(tickets.finished, "finished")

    return TapedResidency, TapedFleet, TapedCore


def decision(answer):
    if isinstance(answer, Held):
        return answer
    record = answer.record
    return record.worker, record.decision.ranked, record.decision.costs, answer.predicted_cached_tokens


def record(policy, sessions, monkeypatch):
    """Run the simulator; the tape, with each token of every answer at its own time."""
    time = VirtualTime()
    calls = {f"{one.id}/{number}": call for one in sessions for number, call in enumerate(one.calls)}
    tape = Tape(time)
    residency, fleet, core = taped(tape, {name: call.prompt_ids for name, call in calls.items()})
    monkeypatch.setattr(simulated, "Fleet", fleet)
    monkeypatch.setattr(simulated, "DecisionCore", core)
    workers = [EngineWorker(time, f"w{n}", spec, n, 0.0005) for n, spec in enumerate(small_workers(WORKERS))]
    built = build_policy(PolicySpec(policy), Random(POLICY_SEED))
    gateway = SimulatedGateway(time, workers, residency(), built, PolicySpec(policy))
    clients = Clients(time, gateway, 0.0005)
    for session in sessions:
        clients.play(session)
    time.run()
    for outcome in clients.outcomes:
        for tokens, at_s in enumerate(outcome.token_times_s(), 1):
            tape.entries.append((at_s, "progress", (outcome.id, tokens)))
    tape.entries.sort(key=lambda entry: (entry[0], entry[1] != "progress"))  # who decides has heard what came with it
    return tape, clients.outcomes


class Live:
    """The gateway's core as it is put together for serving, and a clock that says what the tape says."""

    def __init__(self, policy):
        self.system = GatewayProcess(Config(policy=PolicyConfig(rule=policy, seed=POLICY_SEED)))
        self.tickets, self.decisions, self.now_s = {}, {}, 0.0

    def play(self, tape):
        for self.now_s, what, args in tape.entries:
            getattr(self, what)(*args)

    def link_up(self, slot):
        self.system.residency.slot(slot).link_up()

    def replay_ended(self, slot, ok):
        self.system.residency.slot(slot).replay_ended(ok)

    def ingest(self, slot, seq, payload, replayed):
        self.system.residency.slot(slot).ingest(seq, payload, replayed=replayed)

    def add(self, endpoint):
        self.system.fleet.add(endpoint, self.now_s)

    def probe(self, endpoint_id, facts):
        self.system.fleet.probe_succeeded(endpoint_id, facts, self.now_s)

    def load(self, endpoint_id, report):
        self.system.fleet.load_reported(endpoint_id, report, self.now_s)

    def dispatch(self, said, ids):
        name, path, model, arrived_s, max_tokens, session = said
        packed = array("I", ids).tobytes()
        prompt = Prompt(len(ids), PromptSource.IDS, lambda block_tokens: extend_chain(SEED, packed, block_tokens))
        request = Request(name, path, model, prompt, len(ids), arrived_s, max_tokens=max_tokens, session_id=session)
        answer = self.tickets[name] = self.system.core.dispatcher.dispatch(request, self.now_s, may_hold=True)
        self.decisions.setdefault(name, []).append(decision(answer))

    def first_token(self, name):
        self.system.core.tickets.first_token(self.tickets[name], self.now_s)

    def progress(self, name, tokens):
        self.system.core.tickets.progress(self.tickets[name], tokens)

    def finished(self, name, usage):
        self.system.core.tickets.finished(self.tickets[name], usage, self.now_s)

    def cancelled(self, name):
        self.system.core.tickets.cancelled(self.tickets[name], self.now_s)


def sessions(starts_per_s):
    shape = replace(
        LONG_TAIL,
        sessions=50,
        prefixes=20,
        leaving_share=0.1,
        starts_per_s=starts_per_s,
        prefix_tokens=(2_000, 16_000),
    )
    return conversations(shape, 3)


@pytest.mark.parametrize(
    ("policy", "starts_per_s", "waits"),
    [
        ("marginal_cost", 4.0, False),
        ("marginal_cost", 40.0, True),
        ("lpwl", 4.0, False),
        ("cache_aware", 4.0, False),
        ("power_of_two", 4.0, False),
    ],
)
def test_the_live_core_decides_what_the_simulated_one_did(policy, starts_per_s, waits, monkeypatch):
    tape, outcomes = record(policy, sessions(starts_per_s), monkeypatch)
    live = Live(policy)
    live.play(tape)
    assert live.decisions == tape.decisions
    assert len(live.decisions) == len(outcomes) > 100
    assert len({decisions[-1][0] for decisions in live.decisions.values()}) == WORKERS
    assert any(len(decisions) > 1 for decisions in live.decisions.values()) is waits
    assert {outcome.ending for outcome in outcomes} == {Ending.FINISHED, Ending.LEFT}
