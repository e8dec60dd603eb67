import random
from dataclasses import replace as replace_facts

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.worker import Endpoint, LoadReport, RankCache
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import FleetView
from router.config.model import HealthConfig
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.learning.speed import Speed, median_speed
from router.placement.load import fleet_load
from router.placement.load.fleet_table import FIELDS, STALE_S, FleetTable
from router.placement.request import FailurePoint, Request, Usage
from router.placement.tickets import Ticket
from router.residency.residency_map import ResidencyMap

WHOLE = (
    "cached_tokens", "uncached_tokens", "queued_tokens", "running_requests", "kv_tokens", "kv_capacity_tokens",
    "queued_requests", "idle_tokens",
)  # fmt: skip
IN_SECONDS = ("queue_wait_s", "prefill_s", "utilisation", "error_s", "decode_externality_s", "kv_wait_s")
TOKEN_S = 1e-3
ACTIONS = [
    *["ask"] * 5, *["first"] * 2, *["report"] * 2, "progress", "finish", "serve", "cancel", "fail", "retry", "wait",
    "join", "leave", "capacity", "drain", "learn", "count",
]  # fmt: skip
STEPS_S = [0.01, 0.01, 0.1, 0.2, 1.5, STALE_S + 1.0]


class Compared:
    """A fleet in virtual time whose every decision is made from arrays and compared with views."""

    def __init__(self, facts, prompt, policy="marginal_cost"):
        self.prompt, self.facts, self.now_s, self.ports, self.decisions = prompt, facts, 0.0, 0, 0
        self.residency = ResidencyMap()
        self.fleet = Fleet(HealthConfig(), self.residency)
        self.core = DecisionCore(
            self.fleet, self.residency, build_policy(PolicySpec(policy), random.Random(0)), spec=PolicySpec(policy)
        )
        self.tickets: list[Ticket] = []
        self.seen: set[str] = set()
        """The facts that were above 0 in some comparison."""
        self.loads = self.core.loads
        self.columns = self.loads.columns
        self.loads.columns = self._compared
        self.common_speed, self.loads.common_speed = self.loads.common_speed, self._common_speed

    def _common_speed(self):
        """Return the common speed, and compare each new one with the median of the live candidates.

        The table learns of a departure at the next decision, so nothing is compared until then.
        """
        new, speed = self.loads._stale, self.common_speed()
        if new:
            counted = set(self.loads._live.tolist())
            loads = [load for load in self.loads._loads if load is not None]
            learned = [load.learned for load in loads if load.candidate.live and load.learned is not None]
            if all(load.candidate.live or load.candidate.slot not in counted for load in loads):
                assert speed == (median_speed(learned) if learned else None)
        return speed

    def _compared(self, rows, matches, tokens, now_s, output, remaining_s, hashes):
        columns = self.columns(rows, matches, tokens, now_s, output, remaining_s, hashes)
        candidates = rows.candidates
        by_slot = {candidate.slot: matches.at(place) for place, candidate in enumerate(candidates)}
        views = self.loads.views(candidates, by_slot, tokens, now_s, output, remaining_s, hashes)
        fleet = FleetView(now_s, None, rows.roster, columns)
        assert [(view.id, view.labels) for view in views] == list(zip(fleet.ids, fleet.roster.labels, strict=True))
        assert list(columns.residency) == [view.residency for view in views]
        assert [view.learned for view in views] == [columns.learned] * len(views)
        for fact in WHOLE:
            assert getattr(fleet, fact).tolist() == [getattr(view, fact) for view in views], fact
        for fact in IN_SECONDS:
            expected = [getattr(view, fact) for view in views]
            assert getattr(fleet, fact).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12), fact
        self.seen |= {fact for fact in (*WHOLE, *IN_SECONDS) if getattr(fleet, fact).any()}
        self.decisions += 1
        return columns

    def join(self, blocks=400, ranks=1, block_size=16):
        self.ports += 1
        endpoint = self.fleet.add(Endpoint("http", "h", self.ports), self.now_s, {"rack": f"r{self.ports % 3}"})
        self.probe(endpoint.id, blocks, ranks, block_size)

    def probe(self, endpoint_id, blocks, ranks=1, block_size=16):
        found = self.facts(ranks=ranks, blocks=blocks, events=False)
        caches = {rank: RankCache(block_size, blocks, True) for rank in found.caches}
        self.fleet.probe_succeeded(endpoint_id, replace_facts(found, caches=caches), self.now_s)

    def request(self, tokens, start=0, **fields):
        prompt = self.prompt(range(start, start + tokens)) if start is not None else None
        return Request(f"r{self.decisions}", "/v1/completions", "m", prompt, tokens, self.now_s, **fields)

    def ask(self, *args, **fields):
        answer = self.core.dispatcher.dispatch(self.request(*args, **fields), self.now_s)
        if isinstance(answer, Ticket):
            self.tickets.append(answer)
            return answer
        return None

    def learn(self, endpoint, pace=1.0):
        """Let its speed and its decode steps be learned there, and that conversations return to their idle context."""
        prompts = [(15 * (number + 1), 10_000 * (number + 1)) for number in range(10)]
        prompts += [(48 * (turn + 1), 0) for turn in range(8)]
        for number, (tokens, start) in enumerate(prompts):
            ticket = self.ask(tokens, start, pinned=endpoint.id)
            if ticket is None:
                return
            self.now_s += 0.01 + pace * TOKEN_S * ticket.reservation.uncached_tokens * (1.0 + 0.1 * (number % 3))
            self.core.tickets.first_token(ticket, self.now_s)
            self.core.tickets.progress(ticket, 5 + number)
            self.now_s += (5 + number) * (0.001 + 1e-6 * tokens)
            self.core.tickets.finished(ticket, Usage(tokens, 5 + number, ticket.predicted_cached_tokens), self.now_s)

    def serve(self, ticket):
        self.now_s += TOKEN_S * ticket.reservation.uncached_tokens
        self.core.tickets.first_token(ticket, self.now_s)
        self.now_s += 0.2
        tokens = ticket.reservation.context_tokens
        self.core.tickets.finished(ticket, Usage(tokens, 20, ticket.predicted_cached_tokens), self.now_s)


@pytest.fixture(autouse=True)
def arrays(monkeypatch):
    monkeypatch.setattr(fleet_load, "ARRAYS_FROM", 1)


def step(rig, action, draw):
    core = rig.core
    if action == "wait":
        rig.now_s += draw(st.sampled_from(STEPS_S))
    elif action == "join":
        rig.join(
            draw(st.sampled_from([12, 40, 400])), draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([16, 32]))
        )
    elif action == "ask":
        rig.ask(
            draw(st.integers(0, 40)) * draw(st.sampled_from([1, 8])),
            draw(st.sampled_from([0, 0, 1, 16, None])),
            stream=draw(st.sampled_from([True, True, False])),
            reads_cache=draw(st.sampled_from([True, True, True, False])),
            max_tokens=draw(st.sampled_from([None, 100])),
        )
    elif action == "count":
        rig.loads.views(rig.fleet.candidates, None, 1, rig.now_s)
    elif action in ("report", "leave", "capacity", "drain", "learn"):
        endpoint = draw(st.sampled_from(rig.fleet.endpoints)) if rig.fleet.endpoints else None
        if endpoint is None:
            return
        if action == "report":
            report = LoadReport(0, draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.floats(0.0, 1.0)))
            rig.fleet.load_reported(endpoint.id, report, rig.now_s)
        elif action == "leave":
            rig.fleet.remove(endpoint.id)
        elif action == "capacity":
            rig.probe(endpoint.id, draw(st.sampled_from([12, 40, 41])), endpoint.facts.ranks)
        elif action == "drain":
            (rig.fleet.undrain if endpoint.draining else rig.fleet.drain)(endpoint.id)
        elif not endpoint.draining:
            rig.learn(endpoint)
    elif rig.tickets:
        ticket = draw(st.sampled_from(rig.tickets[-8:]))
        if action == "first":
            core.tickets.first_token(ticket, rig.now_s)
        elif action == "progress":
            core.tickets.progress(ticket, draw(st.integers(0, 50)))
        elif action == "finish":
            core.tickets.finished(ticket, Usage(None, 30, 16), rig.now_s, status=draw(st.sampled_from([200, 400])))
        elif action == "serve":
            rig.serve(ticket)
        elif action == "cancel":
            core.tickets.cancelled(ticket, rig.now_s)
        elif action == "fail":
            core.tickets.failed(ticket, draw(st.sampled_from(FailurePoint)), rig.now_s, "drawn")
        elif not ticket.ended:
            again = core.dispatcher.retry(ticket, FailurePoint.REFUSED, rig.now_s, "drawn")
            if isinstance(again, Ticket):
                rig.tickets.append(again)


@pytest.mark.source_only  # compiled modules cannot be changed
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_columns_equal_views_after_any_events(facts, prompt, data):
    rig = Compared(facts, prompt, data.draw(st.sampled_from(["marginal_cost", "random"])))
    rig.now_s = data.draw(st.sampled_from([0.0, 1e6]))
    for _ in range(data.draw(st.integers(1, 4))):
        rig.join(data.draw(st.sampled_from([40, 400])))
    for endpoint in rig.fleet.endpoints[: data.draw(st.integers(1, 2))]:
        rig.learn(endpoint)
    for action in data.draw(st.lists(st.sampled_from(ACTIONS), min_size=10, max_size=30)):
        step(rig, action, data.draw)
        if data.draw(st.booleans()):
            rig.core.explainer.explain(rig.request(320), rig.now_s)
    rig.core.explainer.explain(rig.request(320), rig.now_s)
    assert rig.decisions


@pytest.mark.source_only
def test_waiting_requests_from_elsewhere_count_alike(facts, prompt):
    """A worker that reports only waiting requests, beside a request of the gateway that it does not report."""
    rig = Compared(facts, prompt)
    rig.join()
    (endpoint,) = rig.fleet.endpoints
    rig.learn(endpoint)
    tickets = [rig.ask(100, 1_000 * number) for number in range(1, 6)]
    for ticket in tickets:
        rig.core.tickets.first_token(ticket, rig.now_s)
    for _ in range(2):
        rig.now_s += 1.0
        rig.fleet.load_reported(endpoint.id, LoadReport(0, 0, 3, 0.0), rig.now_s)
    rig.core.explainer.explain(rig.request(320), rig.now_s)


def test_the_table_of_4096_workers_takes_less_than_8_mb():
    table = FleetTable()
    for slot in range(4_096):
        table.write(slot, [float(slot)] * FIELDS)
        table.learn(slot, Speed(1e-4, 0.01, 0.0, 1e-8, 0.05), 1e-8)
    assert 4_096 * 8 * FIELDS <= table._cells.nbytes + table._learned.nbytes < 8_000_000


@pytest.mark.source_only
@pytest.mark.parametrize("leaves", [0, 1, 2])
def test_the_common_speed_leaves_out_workers_that_have_left(facts, prompt, leaves):
    rig = Compared(facts, prompt)
    for number in range(3):
        rig.join()
        rig.learn(rig.fleet.endpoints[number], pace=1.0 + number)
    gone, other = rig.fleet.endpoints[leaves], rig.fleet.endpoints[leaves - 1]
    ticket = rig.ask(200, 50_000, pinned=other.id)
    rig.fleet.remove(gone.id)
    rig.ask(100, 60_000)
    rig.now_s += 0.3
    rig.core.tickets.first_token(ticket, rig.now_s)
    loads = [rig.loads.of(candidate) for candidate in rig.fleet.candidates]
    assert rig.loads.common_speed() == median_speed([load.learned for load in loads])


@pytest.mark.source_only
def test_a_fleet_that_grows_takes_its_common_speed_from_all_workers(facts, prompt, monkeypatch):
    monkeypatch.setattr(fleet_load, "ARRAYS_FROM", 4)
    rig = Compared(facts, prompt)
    for number in range(4):
        rig.join()
        rig.learn(rig.fleet.endpoints[number], pace=1.0 + number)
    rig.ask(100, 60_000)
    rig.learn(rig.fleet.endpoints[3], pace=9.0)
    loads = [rig.loads.of(candidate) for candidate in rig.fleet.candidates]
    assert len(loads) == fleet_load.ARRAYS_FROM
    assert rig.loads.common_speed() == median_speed([load.learned for load in loads])
