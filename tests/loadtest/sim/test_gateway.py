from random import Random

import pytest

from loadtest.sim.clients import Clients
from loadtest.sim.gateway import HeldCall, Placed, Rejected, SimulatedGateway, facts_of
from loadtest.sim.outcome import Ending
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Decision
from router.residency.residency_map import ResidencyMap


@pytest.fixture
def build(spec):
    def make():
        time, built = VirtualTime(), build_policy(PolicySpec("lpwl"), Random(0))
        engines = [EngineWorker(time, f"w{number}", spec, number) for number in range(2)]
        gateway = SimulatedGateway(time, engines, ResidencyMap(), built, PolicySpec("lpwl"))
        return time, gateway, Clients(time, gateway, 0.0)

    return make


@pytest.fixture
def patient(build):
    time, gateway, clients = build()
    gateway.core.policies.default.adopt(Patient(), PolicySpec("patient"))
    return time, gateway, clients


def drain(gateway):
    for endpoint in gateway.fleet.endpoints:
        gateway.fleet.drain(endpoint.id)


def test_facts_are_what_a_probe_would_learn(spec):
    worker = EngineWorker(VirtualTime(), "w", spec, 0)
    facts = facts_of(worker, publishes=True)
    assert (facts.caches[0].block_size, facts.caches[0].num_gpu_blocks) == (4, 9)
    assert facts.event_sources and not facts_of(worker, publishes=False).event_sources


def test_with_nobody_ready_calls_are_rejected_and_the_session_goes_on(build, make_call, make_session):
    time, gateway, clients = build()
    drain(gateway)
    clients.play(make_session("s", make_call(range(4), [1]), make_call(range(4), [1], pause_s=1.0)))
    time.run()
    assert [(one.ending, one.sent_s, one.worker) for one in clients.outcomes] == [
        (Ending.REJECTED, 0.0, ""),
        (Ending.REJECTED, 1.0, ""),
    ]


def test_edges_reach_the_dispatcher_and_loads_the_fleet(build, make_call, make_session):
    time, gateway, clients = build()
    clients.play(make_session("s", make_call(range(8), [1, 2]), make_call(range(8), [1] * 9, leaves_after_s=0.03)))
    time.run(until_s=1.5)
    figures = gateway.statistics()
    assert (figures["dispatched"], figures["finished"], figures["cancelled"]) == (2, 1, 1)
    assert all(worker["running_requests"] == 0 for worker in figures["workers"].values())
    assert all(candidate.load is not None for candidate in gateway.fleet.candidates), "scraped once a second"


class Patient:
    """Everything goes to the first worker, and waits until that has no prefill left, for two seconds at most."""

    def decide(self, request, fleet):
        first = fleet.workers[0]
        left_s = 2.0 - request.waited_s if first.queued_requests else 0.0
        return Decision(tuple(view.id for view in fleet.workers), "first", hold_s=max(0.0, left_s))


def test_calls_that_are_kept_back_go_one_at_a_time_and_whoever_asked_first_is_the_first(
    patient, make_call, make_session
):
    time, gateway, clients = patient
    for number in range(3):
        call = make_call(range(10 * number, 10 * number + 8), [1] * 3)
        clients.play(make_session(f"s{number}", call, start_s=0.001 * number))
    time.run(until_s=0.9)
    ttft_s = {one.session: one.ttft_s for one in clients.outcomes}
    assert sorted(ttft_s) == ["s0", "s1", "s2"] and {one.worker for one in clients.outcomes} == {"w0"}
    assert ttft_s["s0"] < ttft_s["s1"] < ttft_s["s2"]
    waited = [record.request.waited_s for record in gateway.core.log.latest(3)]
    assert waited[2] == 0.0 < waited[1] < waited[0] < 0.1


@pytest.mark.parametrize("leave", [False, True])
def test_a_call_that_has_waited_enough_goes_all_the_same_or_is_turned_away(patient, make_call, leave):
    """The second where its workers leave meanwhile."""
    time, gateway, _ = patient
    assert isinstance(gateway.place("first", "s", make_call(range(8), [1])), Placed)
    held_call, placed = gateway.place("second", "t", make_call(range(8), [1])), []
    assert isinstance(held_call, HeldCall)
    held_call.heard.append(lambda answer: placed.append((time.now_s, answer)))
    if leave:
        drain(gateway)
    time.run(until_s=1.9)
    assert placed == []
    time.run(until_s=2.1)
    ((at_s, answer),) = placed
    assert at_s == 2.0 and isinstance(answer, Rejected if leave else Placed)
    assert leave or answer.worker.name == "w0"


def test_a_client_may_leave_while_its_call_is_kept_back(patient, make_call, make_session):
    time, gateway, clients = patient
    clients.play(make_session("long", make_call(range(28), [1])))
    clients.play(make_session("short", make_call(range(100, 108), [1], leaves_after_s=0.01), make_call([5], [1])))
    clients.play(make_session("patient", make_call(range(200, 208), [1], leaves_after_s=9.0)))
    time.run(until_s=1.0)
    left, *others = sorted(clients.outcomes, key=lambda one: one.ended_s)
    assert (left.id, left.ending, left.ended_s, left.ttft_s, left.worker) == ("short/0", Ending.LEFT, 0.01, None, "")
    assert {one.id: one.ending for one in others} == dict.fromkeys(("long/0", "short/1", "patient/0"), Ending.FINISHED)
    assert gateway.statistics()["dispatched"] == 3
