"""Each condition of the list holds in its trouble and not without, by the same metrics that its alert reads."""

import pytest

from router.diagnosis.condition import RANK, Severity
from router.diagnosis.conditions import CONDITIONS
from router.diagnosis.standing import Standing
from router.metrics.catalogue import CATALOGUE, PROCESS, Kind
from router.telemetry.snapshot import Snapshot, Tally

SPECS = {spec.name: spec for spec in (*CATALOGUE, *PROCESS)}
READY = {("ready_workers",): 1}
LAG = len(SPECS["warmroute_loop_lag_seconds"].buckets) + 1


def state(name):
    return ("worker_state", "a:1", name)


CASES = {
    "no_worker_ready": (READY, {("ready_workers",): 0}),
    "model_without_worker": ({("model_ready_workers", "m"): 1}, {("model_ready_workers", "m"): 0}),
    "worker_unhealthy": ({state("unhealthy"): 0}, {state("unhealthy"): 1}),
    "workers_kept": ({("workers_kept",): 0}, {("workers_kept",): 2}),
    "worker_not_up": ({state("starting"): 0}, {state("starting"): 1}),
    "requests_queued": ({("queued_requests",): 0}, {("queued_requests",): 4}),
    "fleet_saturated": ({("queued_prefill_seconds", "a"): 0.5}, {("queued_prefill_seconds", "a"): 3.0}),
    "kv_cache_full": ({("worker_kv_usage_ratio", "a"): 0.5}, {("worker_kv_usage_ratio", "a"): 0.95}),
    "source_failing": ({("discovery_up", "dns"): 1}, {("discovery_up", "dns"): 0}),
    "events_disconnected": ({("event_link_up", "a"): 1}, {("event_link_up", "a"): 0}),
    "events_lost": (
        {("event_gaps", "a"): "+1", ("event_replays", "a", "filled"): "+1"},
        {("event_gaps", "a"): "+1", ("event_replays", "a", "timeout"): "+1"},
    ),
    "view_lost": ({("view_residency", "a", "unknown"): 0}, {("view_residency", "a", "unknown"): 1}),
    "view_not_exact": (
        {("view_residency", "a", "approximate"): 1, ("event_link_up", "a"): 0},
        {("view_residency", "a", "approximate"): 1, ("event_link_up", "a"): 1},
    ),
    "predictions_wrong": (
        {("cached_comparisons", "a", "equal"): "+9", ("cached_comparisons", "a", "over"): "+1"},
        {("cached_comparisons", "a", "equal"): "+5", ("cached_comparisons", "a", "over"): "+5"},
    ),
    "class_misses_level": (
        {("class_service_level_requests", "chat", "ttft", "true"): "+9"},
        {
            ("class_service_level_requests", "chat", "ttft", "true"): "+5",
            ("class_service_level_requests", "chat", "ttft", "false"): "+5",
        },
    ),
    "policy_fails": ({("policy_errors", "mine"): 0}, {("policy_errors", "mine"): "+1"}),
    "tokenizer_slow": ({("models", "local"): 2, ("models", "worker"): 0}, {("models", "worker"): 1}),
    "replica_alone": ({("replica_alone",): 0}, {("replica_alone",): 1}),
    "replicas_apart": ({("replicas_apart",): 0}, {("replicas_apart",): 1}),
    "server_errors": (
        {("requests", "/v1/x", "", "", "200"): "+99", ("requests", "/v1/x", "", "", "503"): "+1"},
        {("requests", "/v1/x", "", "", "200"): "+9", ("requests", "/v1/x", "", "", "503"): "+1"},
    ),
    "retry_budget_exhausted": ({("retry_budget_exhausted",): 0}, {("retry_budget_exhausted",): "+1"}),
    "event_loop_slow": ({"lag": 2}, {"lag": LAG - 2}),
    "memory_high": (
        {("process_resident_memory_bytes",): 5, ("memory_limit_bytes", "cgroup"): 10},
        {("process_resident_memory_bytes",): 9.5, ("memory_limit_bytes", "cgroup"): 10},
    ),
    "buffers_full": (
        {("buffered_bytes", "responses"): 5, ("buffered_limit_bytes", "responses"): 10},
        {("buffered_bytes", "responses"): 9, ("buffered_limit_bytes", "responses"): 10},
    ),
    "process_restarts": ({("process_restarts",): 0}, {("process_restarts",): "+1"}),
    "reload_failed": ({("reloads", "tls", "ok"): "+1"}, {("reloads", "tls", "failed"): "+1"}),
    "state_not_saved": ({("state_problems", "unsaved"): 0}, {("state_problems", "unsaved"): 1}),
    "state_set_aside": ({("state_problems", "set_aside"): 0}, {("state_problems", "set_aside"): 1}),
    "log_lines_lost": ({("log_lines_dropped",): 0}, {("log_lines_dropped",): "+7"}),
    "decisions_lost": ({("decision_log_lost_windows",): 0}, {("decision_log_lost_windows",): "+1"}),
    "limits_refuse": (
        {("limit_refusals", "acme", "requests_per_minute"): "+1", ("limit_admitted_requests", "acme"): "+9"},
        {("limit_refusals", "acme", "requests_per_minute"): "+5", ("limit_admitted_requests", "acme"): "+9"},
    ),
    "route_refuses": ({("route_refusals", "chats"): 0}, {("route_refusals", "chats"): "+1"}),
}
"""Series with their value; "+N" rises by N every ten seconds. The number of "lag" is the bucket of the observations."""


def snapshot(series, tick):
    values, histograms = {}, {}
    for key, value in {**READY, **series}.items():
        if key == "lag":
            counts = [100 * tick if place == value else 0 for place in range(LAG)]
            histograms["warmroute_loop_lag_seconds"] = {(): Tally(counts, 0.0)}
            continue
        name = key[0] if key[0] in SPECS else f"warmroute_{key[0]}"
        assert len(SPECS[name].labels) == len(key) - 1, name
        rising = isinstance(value, str)
        assert rising <= (SPECS[name].kind is Kind.COUNTER)
        values.setdefault(name, {})[key[1:]] = tick * float(value) if rising else float(value)
    return Snapshot(values, histograms)


class Clock:
    s = 1_000_000.0

    def __call__(self):
        return self.s


def held_after(series, ticks):
    """The names of what holds after so many observations, ten seconds apart."""
    clock = Clock()
    standing = Standing(clock)
    for tick in range(ticks):
        clock.s = 1_000_000.0 + 10.0 * tick
        standing.observe(snapshot(series, tick))
    return {one.condition.name: one for one in standing.holding()}


def test_each_condition_that_is_a_finding_has_a_case():
    assert list(CASES) == [one.name for one in CONDITIONS if one.finds]


@pytest.mark.parametrize("name", CASES)
def test_a_condition_holds_in_its_trouble_and_not_without(name):
    quiet, trouble = CASES[name]
    assert set(held_after(quiet, 60)) <= {"events_disconnected"}
    assert name in held_after(trouble, 60)
    alone = set(held_after(trouble, 60)) - {name, "view_not_exact"}
    assert not alone or name == "view_not_exact", alone


def test_an_outage_is_found_at_the_first_look_and_keeps_its_time():
    clock = Clock()
    standing = Standing(clock)
    standing.observe(snapshot({}, 0))
    for clock.s in (1_000_010.0, 1_000_020.0, 1_000_030.0):
        standing.observe(snapshot({("ready_workers",): 0}, 0))
        (held,) = standing.holding()
        assert (held.condition.severity, held.since_s) == (Severity.OUTAGE, 1_000_010.0)
    standing.observe(snapshot({}, 0))
    assert standing.holding() == []


def test_without_any_worker_the_other_findings_about_workers_are_left_out():
    down = {("ready_workers",): 0, state("unhealthy"): 1, ("model_ready_workers", "m"): 0}
    assert set(held_after(down, 60)) == {"no_worker_ready"}
    held = held_after({state("unhealthy"): 1, ("worker_state", "b:2", "unhealthy"): 1}, 60)["worker_unhealthy"]
    assert held.subjects == ["a:1", "b:2"]


def test_the_first_error_of_a_policy_is_found_and_forgotten_after_ten_minutes():
    clock = Clock()
    standing = Standing(clock)
    found = []
    for tick in range(80):
        clock.s = 1_000_000.0 + 10.0 * tick
        standing.observe(snapshot({("policy_errors", "mine"): 1 if tick >= 5 else 0}, 0))
        found.append(bool(standing.holding()))
    assert found[4:6] == [False, True] and found[60] and not found[70]


def test_the_severities_are_those_of_the_alerts():
    assert [RANK[one] for one in Severity] == [0, 1, 2]
    labels = {one.severity: one.rule()["labels"]["severity"] for one in CONDITIONS}
    assert labels == {Severity.OUTAGE: "critical", Severity.DEGRADED: "warning", Severity.ADVICE: "info"}
