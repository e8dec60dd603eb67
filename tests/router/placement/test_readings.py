import asyncio
import random
from types import SimpleNamespace

import pytest

from backends.worker import Endpoint, KvEventSource, LoadReport, RankCache, ServedModel, WorkerFacts
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Residency
from router.config.model import HealthConfig
from router.metrics.registry import Registry
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.scaling import Needed
from router.placement.handover.links import Link
from router.placement.readings import (
    PlacementReadings,
    fleet_readings,
    link_readings,
    residency_readings,
    scaling_readings,
)
from router.placement.request import Request
from router.placement.tickets import Ticket
from router.residency.residency_map import ResidencyMap
from router.telemetry.exposition import Exposition
from router.telemetry.snapshot import page


def fleet_of_one():
    residency = ResidencyMap()
    fleet = Fleet(HealthConfig(), residency)
    endpoint = fleet.add(Endpoint("http", "h", 1), 0.0)
    fleet.add(Endpoint("http", "down", 2), 0.0)
    facts = WorkerFacts("0.33.0", (ServedModel("m"),), {0: RankCache(16, 100, True)}, (KvEventSource(0, "tcp://h:5"),))
    fleet.probe_succeeded(endpoint.id, facts, 1.0)
    fleet.load_reported(endpoint.id, LoadReport(0, 2, 1, 0.5, 100, 60), 1.0)
    return fleet, residency


def test_fleet_readings_have_states_and_loads():
    fleet, _ = fleet_of_one()
    read = {(name, labels): value for name, labels, value in fleet_readings(fleet)}
    assert read["warmroute_worker_state", ("h:1", "ready")] == 1
    assert read["warmroute_worker_state", ("h:1", "starting")] == 0
    assert read["warmroute_worker_state", ("down:2", "starting")] == 1
    assert not any(labels == ("down:2",) for _, labels in read)


def test_ready_workers_are_counted_by_each_listed_model():
    fleet, _ = fleet_of_one()
    (endpoint, _) = fleet.endpoints
    model = endpoint.facts.models[0].id
    read = {(name, labels): value for name, labels, value in fleet_readings(fleet)}
    assert read["warmroute_ready_workers", ()] == 1
    assert read["warmroute_model_ready_workers", (model,)] == 1
    endpoint.draining = True
    read = {(name, labels): value for name, labels, value in fleet_readings(fleet)}
    assert read["warmroute_ready_workers", ()] == read["warmroute_model_ready_workers", (model,)] == 0


def test_link_readings_have_the_slowest_link_to_each_worker():
    fleet, _ = fleet_of_one()
    (candidate,) = fleet.candidates
    links = [Link("pull", candidate, candidate, 100.0, 0.1, 3), Link("pull", candidate, candidate, 50.0, 0.05, 1)]
    assert set(link_readings(links)) == {
        ("warmroute_kv_transfer_tokens_per_second", ("h:1", "pull"), 50.0),
    }


def test_scaling_readings_leave_out_what_was_not_measured():
    roles = {"mixed": Needed(2, 0.5, 0.3, 0.1, 0.9, 3), "down": Needed(0, 0.0, 0.0, 0.0, None, 4)}
    read = {(name.removeprefix("warmroute_"), *labels): value for name, labels, value in scaling_readings(roles)}
    assert read == {
        ("desired_replicas", "mixed"): 3, ("role_service_level_ratio", "mixed"): 0.9,
        ("role_utilisation_ratio", "mixed", "kv_cache"): 0.5, ("role_utilisation_ratio", "mixed", "prefill"): 0.3,
        ("role_queued_prefill_seconds", "mixed"): 0.1, ("desired_replicas", "down"): 4,
    }  # fmt: skip


def test_residency_readings_have_views_and_links():
    fleet, residency = fleet_of_one()
    slot = fleet.candidates[0].slot
    residency.slot(slot).link_up()
    residency.slot(slot).ingest(0, b"nonsense")
    residency.slot(slot).ingest(4, b"nonsense")
    read = {(name, labels): value for name, labels, value in residency_readings(fleet, residency)}
    assert read["warmroute_view_residency", ("h:1", "unknown")] == 1
    assert read["warmroute_view_residency", ("h:1", "exact")] == 0
    assert ("warmroute_event_gaps", ("h:1",)) in read and ("warmroute_event_faults", ("h:1", "batch")) in read
    residency.slot(slot).tested(Residency.OFF, "nothing found")
    read = {(name, labels): value for name, labels, value in residency_readings(fleet, residency)}
    assert read["warmroute_view_residency", ("h:1", "off")] == 1


def readings_of(fleet, residency, registry=None):
    policy = build_policy(PolicySpec("round_robin"), random.Random(0))
    core = DecisionCore(fleet, residency, policy, spec=PolicySpec("round_robin"), registry=registry)
    return core, PlacementReadings(fleet, residency, core, lambda now_s: {}, lambda: 2.0)


@pytest.mark.source_only
def test_what_placement_reads_follows_a_request_and_is_in_the_catalogue():
    registry = Registry()
    core, part = readings_of(*fleet_of_one(), registry)

    def read():
        return {(name.removeprefix("warmroute_"), *labels): value for name, labels, value in part.readings()}

    before = read()
    placed = core.dispatcher.dispatch(Request("r", "/v1/completions", "m", None, 10_000, 2.0), 2.0)
    assert isinstance(placed, Ticket)
    after = read()
    assert after["queued_prefill_seconds", "h:1"] > before["queued_prefill_seconds", "h:1"]
    assert before["desired_replicas", "mixed"] == 1 and before["decision_log_lost_windows",] == 0
    core.policies = SimpleNamespace(statistics=lambda: {"recorded": {"lost_windows": 1}})
    assert read()["decision_log_lost_windows",] == 1
    text = page(asyncio.run(Exposition(registry, [part]).snapshot()))[0]
    assert b'warmroute_prompt_tokens_total{worker="h:1"} 10000.0' in text
    assert b'warmroute_worker_state{endpoint="h:1",state="ready"} 1.0' in text
    assert b'warmroute_event_gaps_total{worker="h:1"}' in text
