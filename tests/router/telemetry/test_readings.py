import random

from backends.worker import Endpoint, KvEventSource, LoadReport, RankCache, ServedModel, WorkerFacts
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Residency
from router.config.budgets import plan_memory
from router.config.memory import MemoryLimit
from router.config.model import Config, HealthConfig
from router.metrics.catalogue import CATALOGUE
from router.metrics.registry import Registry
from router.placement.dispatcher import Dispatcher
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.scaling import Needed
from router.placement.handover.links import Link
from router.placement.request import Request
from router.placement.tickets import Ticket
from router.residency.residency_map import ResidencyMap
from router.telemetry.exposition import Exposition
from router.telemetry.readings import (
    fleet_readings,
    gateway_readings,
    identity_readings,
    link_readings,
    pinned_readings,
    policy_readings,
    queue_readings,
    residency_readings,
    scaling_readings,
    setting_readings,
    watch_readings,
)
from router.tokenization.prompt_identifier import PromptIdentifier


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


def test_stuck_blocks_are_a_reading_of_their_worker():
    assert list(pinned_readings({"h:1": 968})) == [("warmroute_worker_stuck_kv_tokens", ("h:1",), 968)]


def test_scaling_readings_leave_out_what_was_not_measured():
    roles = {"mixed": Needed(2, 0.5, 0.3, 0.1, 0.9, 3), "down": Needed(0, 0.0, 0.0, 0.0, None, 4)}
    read = {(name.removeprefix("warmroute_"), *labels): value for name, labels, value in scaling_readings(roles)}
    assert read == {
        ("desired_replicas", "mixed"): 3, ("role_service_level_ratio", "mixed"): 0.9,
        ("role_utilisation_ratio", "mixed", "kv_cache"): 0.5, ("role_utilisation_ratio", "mixed", "prefill"): 0.3,
        ("role_queued_prefill_seconds", "mixed"): 0.1, ("desired_replicas", "down"): 4,
    }  # fmt: skip


def test_buffers_have_a_gauge_of_their_limit_and_one_of_their_use():
    plan = plan_memory(Config(), 1, MemoryLimit(1 << 30, "cgroup v2"))
    read = {(name, labels): value for name, labels, value in setting_readings(plan.config, plan.limit)}
    assert read["warmroute_memory_limit_bytes", ("cgroup v2",)] == 1 << 30
    limits = {place: value for place, value in read.items() if len(place[1]) and place[1] != ("cgroup v2",)}
    assert list(limits.values()) == list(plan.budgets.values())[:2]
    declared = {spec.name: spec.labels for spec in CATALOGUE}
    assert all(declared[name] == declared[name.replace("_limit_bytes", "_bytes")] for name, _ in limits)
    assert Exposition(Registry(), [lambda: setting_readings(plan.config, plan.limit)]).render()


def test_residency_readings_have_views_and_links():
    fleet, residency = fleet_of_one()
    slot = fleet.candidates[0].slot
    residency.link_up(slot)
    residency.ingest(slot, 0, b"nonsense")
    residency.ingest(slot, 4, b"nonsense")
    read = {(name, labels): value for name, labels, value in residency_readings(fleet, residency)}
    assert read["warmroute_view_residency", ("h:1", "unknown")] == 1
    assert read["warmroute_view_residency", ("h:1", "exact")] == 0
    assert ("warmroute_event_gaps", ("h:1",)) in read and ("warmroute_event_faults", ("h:1", "batch")) in read
    residency.set_self_test(slot, Residency.OFF, "nothing found")
    read = {(name, labels): value for name, labels, value in residency_readings(fleet, residency)}
    assert read["warmroute_view_residency", ("h:1", "off")] == 1
    watched = {"endpoints": {"h:1": {"subscriptions": {"h:1": {"linked": True, "bytes": 9, "lag_s": 0.5}}}}}
    links = {name: value for name, _, value in watch_readings(watched)}
    assert links == {
        "warmroute_event_link_up": 1.0,
        "warmroute_event_lag_seconds": 0.5,
    }


def test_identity_readings_have_savings_and_models():
    known = {"memo": {"found_tokens": 30, "new_tokens": 10}}
    known |= {"models_local": 3, "models_by_worker": 2, "models_text_only": 1}
    read = {labels[0]: value for _, labels, value in identity_readings(known)}
    assert read == {"local": 3, "worker": 2, "none": 1, "memory": 30, "tokenizer": 10}


def test_all_readings_are_in_the_catalogue():
    fleet, residency = fleet_of_one()
    watched = {"endpoints": {"h:1": {"subscriptions": {"h:1": {"linked": False, "bytes": 0, "lag_s": 1.0}}}}}
    exposition = Exposition(
        Registry(),
        [
            lambda: fleet_readings(fleet),
            lambda: residency_readings(fleet, residency),
            lambda: watch_readings(watched),
            lambda: gateway_readings({"connections": 1, "streams": 2}),
            lambda: gateway_readings({}),
            lambda: identity_readings(PromptIdentifier(Config()).statistics()),
        ],
    )
    page = exposition.render()[0]
    assert b'warmroute_worker_state{endpoint="h:1",state="ready"} 1.0' in page
    assert b'warmroute_event_gaps_total{worker="h:1"} 0.0' in page


def test_the_queue_wait_of_a_worker_grows_with_the_prompts_that_wait_there():
    fleet, residency = fleet_of_one()
    dispatcher = Dispatcher(
        fleet, residency, build_policy(PolicySpec("round_robin"), random.Random(0)), spec=PolicySpec("round_robin")
    )
    ((name, labels, idle_s), *_) = queue_readings(dispatcher.views(2.0))
    assert (name, labels) == ("warmroute_queued_prefill_seconds", ("h:1",))
    assert isinstance(dispatcher.dispatch(Request("r", "/v1/completions", "m", None, 10_000, 2.0), 2.0), Ticket)
    ((_, _, queued_s), *_) = queue_readings(dispatcher.views(2.0))
    assert queued_s > idle_s


def test_decisions_are_counted():
    fleet, residency = fleet_of_one()
    registry = Registry()
    policy = build_policy(PolicySpec("round_robin"), random.Random(0))
    dispatcher = Dispatcher(fleet, residency, policy, spec=PolicySpec("round_robin"), registry=registry)
    placed = dispatcher.dispatch(Request("r", "/v1/completions", "m", None, 10, 2.0), 2.0)
    assert isinstance(placed, Ticket)
    page = Exposition(registry).render()[0]
    assert b'warmroute_prompt_tokens_total{worker="h:1"} 10.0' in page


def test_the_losses_of_the_decision_log_are_counted():
    named = {"policies": {}, "recorded": {"decisions": 7, "lost_windows": 1}}
    assert list(policy_readings(named)) == [("warmroute_decision_log_lost_windows", (), 1)]
    assert [value for _, _, value in policy_readings({**named, "recorded": None})] == [0]
