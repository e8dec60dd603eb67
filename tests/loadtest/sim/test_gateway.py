"""What a gateway says no to, and what it counts."""

from random import Random

from backends.engine.engine import Engine
from loadtest.sim.clients import Clients
from loadtest.sim.gateway import Delays, Rejected, SimulatedGateway, facts_of
from loadtest.sim.outcome import Ending
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from policies.registry import build_policy
from router.prefix.residency import ResidencyMap


def build(spec, workers=2):
    time = VirtualTime()
    engines = [EngineWorker(time, f"w{number}", spec, number) for number in range(workers)]
    policy = build_policy("lpwl", {}, Random(0))
    gateway = SimulatedGateway(time, engines, ResidencyMap(), policy, "lpwl", delays=Delays())
    return time, engines, gateway


def test_facts_are_what_a_probe_would_learn(spec):
    _, (worker, _), _ = build(spec)
    facts = facts_of(worker, publishes=True)
    assert (facts.caches[0].block_size, facts.caches[0].num_gpu_blocks) == (4, 9)
    assert facts.event_sources and not facts_of(worker, publishes=False).event_sources
    assert isinstance(worker.engine, Engine)


def test_with_nobody_ready_calls_are_rejected_and_the_session_goes_on(spec, make_call, make_session):
    time, engines, gateway = build(spec)
    for endpoint in gateway.fleet.endpoints:
        gateway.fleet.drain(endpoint.id)
    clients = Clients(time, gateway, engines, 0.0)
    assert isinstance(gateway.place("x", "s", make_call(range(4), [1])), Rejected)
    clients.play(make_session("s", make_call(range(4), [1]), make_call(range(4), [1], pause_s=1.0)))
    time.run()
    assert [(one.ending, one.sent_s, one.worker) for one in clients.outcomes] == [
        (Ending.REJECTED, 0.0, ""),
        (Ending.REJECTED, 1.0, ""),
    ]
    assert clients.statistics() == {"ended": 2}


def test_edges_reach_the_dispatcher_and_loads_the_fleet(spec, make_call, make_session):
    time, engines, gateway = build(spec)
    clients = Clients(time, gateway, engines, 0.0)
    clients.play(make_session("s", make_call(range(8), [1, 2]), make_call(range(8), [1] * 9, leaves_after_s=0.03)))
    time.run(until_s=1.5)
    figures = gateway.statistics()
    assert (figures["dispatched"], figures["finished"], figures["cancelled"]) == (2, 1, 1)
    assert all(worker["running_requests"] == 0 for worker in figures["workers"].values())
    assert all(candidate.load is not None for candidate in gateway.fleet.candidates), "scraped once a second"
