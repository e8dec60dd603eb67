"""The findings of a running gateway: which, since when, why and what to do, of all processes and gateways."""

import msgspec
import pytest

from policies.registry import policy_names
from router.config.model import Config, DiagnosisConfig, HandoverConfig, PolicyConfig, ResidencyConfig
from router.diagnosis import checks
from router.diagnosis.condition import Severity
from router.diagnosis.conditions import CONDITIONS
from router.diagnosis.diagnoser import Diagnoser, Inputs
from router.diagnosis.facts import Facts, ViewFact, WorkerFact, over_processes
from router.diagnosis.finding import Finding, worst_first
from router.diagnosis.in_force import InForce, in_force
from router.diagnosis.measured import Measured
from router.telemetry.snapshot import Snapshot

DOWN = WorkerFact("a:1", "left", "unhealthy", "cannot connect", ["chat"], [], False)
UP = WorkerFact("b:2", None, "ready", "probe succeeded", ["chat"], [ViewFact("b:2", "exact", "self-test")], True)


def inputs(values, facts, force=None):
    named = {f"warmroute_{name}": series for name, series in values.items()}
    return Inputs(Snapshot(named, {}), Measured(), facts, force or InForce(), DiagnosisConfig())


def found(values, facts, force=None):
    return Diagnoser(clock=lambda: 1_700_000_000.0).diagnosis(inputs(values, facts, force)).findings


def test_an_outage_names_each_worker_its_reason_and_what_to_do():
    (one,) = found({"ready_workers": {(): 0.0}}, Facts([DOWN]))
    assert (one.check, one.severity) == ("no_worker_ready", Severity.OUTAGE)
    assert one.since == "2023-11-14T22:13:20+00:00"
    assert one.why == ["left (a:1) is unhealthy: cannot connect"]
    assert one.to_try == ["start the workers again; each comes back by itself once its probe succeeds"]


def test_an_empty_fleet_names_the_source_that_fails():
    (one,) = found({"ready_workers": {(): 0.0}}, Facts(reasons={"source dns": "no such name"}))
    assert one.why == ["the fleet has no worker; source dns no such name"]
    assert "add a worker" in one.to_try[0]


def test_a_model_without_a_worker_is_named_with_its_workers():
    values = {"ready_workers": {(): 1.0}, "model_ready_workers": {("chat",): 0.0, ("embed",): 1.0}}
    (one,) = found(values, Facts([DOWN]))
    assert (one.check, one.which) == ("model_without_worker", ["chat"])
    assert one.why == ["left (a:1) is unhealthy: cannot connect"]


def test_many_subjects_are_counted_and_not_all_listed():
    states = {(f"w{number}:1", "unhealthy"): 1.0 for number in range(30)}
    (one,) = found({"ready_workers": {(): 1.0}, "worker_state": states}, Facts())
    assert len(one.which) == 21 and one.which[-1] == "and 10 more" and one.why == []


def test_findings_come_worst_first():
    values = {
        "ready_workers": {(): 0.0},
        "policy_errors": {("mine",): 3.0},
        "state_problems": {("unsaved",): 1.0},
    }
    findings = found(values, Facts(reasons={"state": "no space left"}))
    assert [one.severity for one in findings] == [
        Severity.OUTAGE,
        Severity.DEGRADED,
        Severity.DEGRADED,
    ]
    by_check = {one.check: one for one in findings}
    assert by_check["state_not_saved"].why == ["no space left"]
    assert "It failed 3 times" in by_check["policy_fails"].detail


def test_processes_that_differ_say_who_has_the_worse_state():
    other = msgspec.structs.replace(DOWN, state="ready", reason="probe succeeded")
    merged = over_processes({0: Facts([other, UP]), 1: Facts([DOWN, UP], {"chat": "local"})})
    assert merged.worker("a:1").state == "unhealthy"
    assert merged.worker("a:1").reason == "cannot connect, says process 1"
    assert merged.worker("b:2") == UP and merged.prompts == {"chat": "local"}


@pytest.mark.parametrize("rule", policy_names())
@pytest.mark.parametrize("wrapped", [True, False])
def test_no_remedy_names_what_is_on(rule, wrapped):
    force = in_force(Config(), PolicyConfig(rule, hold=wrapped, lanes=wrapped), Facts([UP]))
    found = [check for name, check in vars(checks).items() if name.endswith("_remedies")]
    tried = [one for remedies in found for one in remedies(force)]
    assert len(found) == 5
    assert any("policy.lanes: true" in one for one in tried) is not wrapped
    assert any("policy.hold: true" in one for one in tried) is not wrapped
    assert not any("--kv-events-config" in one or "kv_events: true" in one for one in tried)
    assert any("counts cached tokens" in one for one in tried) is (not force.counts_cached)


def test_remedies_follow_handover_fp8_tiers_events_and_redis():
    fp8 = msgspec.structs.replace(UP, cache_type="fp8_e5m2", connector="OffloadingConnector")
    config = Config(handover=HandoverConfig(connector="nixl_pull"), residency=ResidencyConfig(kv_events=False))
    force = in_force(config, PolicyConfig(), Facts([fp8]))
    assert not any("handover.connector" in one for one in checks.phase_interference_remedies(force))
    assert not any("fp8" in one or "offloading" in one for one in checks.kv_capacity_remedies(force))
    assert any("residency.kv_events: true" in one for one in checks.prefix_reuse_remedies(force))
    dumb = in_force(config, PolicyConfig(), Facts([DOWN]))
    assert any("fp8" in one for one in checks.kv_capacity_remedies(dumb))
    assert any("redis.url" in one for one in checks.prefix_reuse_remedies(dumb))


def test_each_finding_has_a_symptom_and_a_remedy_in_any_state():
    for facts in (Facts(), Facts([DOWN]), Facts([UP]), Facts([msgspec.structs.replace(DOWN, state="asleep")])):
        for condition in CONDITIONS:
            if condition.finds:
                assert condition.symptom.endswith(".") and condition.remedies(InForce(), facts)


def test_findings_of_one_severity_come_in_the_order_of_their_times():
    late, early = (Finding(name, Severity.ADVICE, "", "", [], [], since) for name, since in (("b", "2"), ("a", "1")))
    assert worst_first([late, early]) == [early, late]


def test_a_worker_that_gets_no_requests_is_found_once_and_not_for_its_events_too():
    clock = iter([1_000.0, 1_000.0, 1_020.0, 1_020.0])
    links = {("a:1",): 0.0, ("b:2#1",): 0.0}
    values = {"ready_workers": {(): 1.0}, "event_link_up": links, "worker_state": {("a:1", "unhealthy"): 1.0}}

    diagnoser, read = Diagnoser(clock=lambda: next(clock)), inputs(values, Facts([DOWN, UP]))
    diagnoser.diagnosis(read)
    found = {one.check: one.which for one in diagnoser.diagnosis(read).findings}
    assert found == {"worker_unhealthy": ["a:1"], "events_disconnected": ["b:2#1"]}


def test_a_class_that_misses_its_level_says_why_and_what_is_not_in_force():
    clock = iter(range(1_700_000_000, 1_800_000_000, 30))
    diagnoser = Diagnoser(clock=lambda: float(next(clock)))
    config = msgspec.convert(
        {"classes": {"chat": {"slo": {"ttft": 0.5, "tpot": 0.03}, "max_wait_s": 10}, "batch": {"share": 0}}}, Config
    )
    facts = Facts(reasons={"class chat": "they waited for room"})
    force = in_force(config, PolicyConfig(), facts)

    def seen(met, missed):
        series = {("chat", "ttft", "true"): met, ("chat", "ttft", "false"): missed}
        values = {"class_service_level_requests": series, "ready_workers": {(): 1.0}}
        return diagnoser.diagnosis(inputs(values, facts, force)).findings

    assert seen(100.0, 0.0) == []
    for met, missed in ((150.0, 30.0), (200.0, 60.0), (250.0, 90.0)):
        findings = seen(met, missed)
    (one,) = findings
    assert (one.check, one.which, one.why) == ("class_misses_level", ["chat"], ["they waited for room"])
    assert one.to_try == [
        "leave a part of each worker free (classes.NAME.floor) for chat",
        "refuse what would come too late (classes.NAME.max_wait_s) in batch",
        "add workers, where late streams waited for room or the worker alone takes too long",
    ]
    assert "37.5 %" in one.detail
