import pytest

from backends.worker import Endpoint, LoadReport, ServedModel, WorkerFacts
from policies.view import Residency
from router.config.model import HealthConfig
from router.placement.fleet import traffic
from router.placement.fleet.fleet import Fleet, WorkerState


def endpoint(port):
    return Endpoint("http", "h", port)


@pytest.fixture
def fleet(shadow_residency):
    return Fleet(HealthConfig(), shadow_residency)


def join(fleet, facts, port):
    joined = fleet.add(endpoint(port), 0.0)
    fleet.probe_succeeded(joined.id, facts, 0.0)
    return joined


def states(fleet):
    return [one.state for one in fleet.endpoints]


def test_joins_without_candidates_until_probed(fleet, facts):
    joined = fleet.add(endpoint(1), 5.0)
    assert (joined.id, joined.state, joined.candidates) == ("h:1", WorkerState.STARTING, ())
    assert fleet.add(endpoint(1), 6.0) is joined
    fleet.probe_failed("h:1", "connection refused", 6.0)
    assert "connection refused" in joined.reason
    fleet.probe_succeeded("h:1", facts(), 7.0)
    assert joined.state is WorkerState.READY
    (candidate,) = joined.candidates
    assert (candidate.id, candidate.slot, candidate.rank) == ("h:1", 0, None)
    assert candidate.capacity_tokens == 440_000


def test_one_candidate_per_rank(fleet, facts):
    join(fleet, facts(ranks=3), 1)
    assert [(c.id, c.slot, c.rank) for c in fleet.candidates] == [("h:1#0", 0, 0), ("h:1#1", 1, 1), ("h:1#2", 2, 2)]


def test_slots_are_used_again_and_stale_candidates_say_so(fleet, facts, shadow_residency):
    for port in (1, 2, 3):
        join(fleet, facts(), port)
    gone = fleet.get("h:2").candidates[0]
    fleet.remove("h:2")
    fleet.remove("h:2")
    assert not gone.live
    fleet.add(endpoint(4), 2.0)
    fleet.probe_succeeded("h:4", facts(ranks=2), 2.0)
    assert [c.slot for c in fleet.get("h:4").candidates] == [1, 3]
    assert sorted(shadow_residency.blocks) == [0, 1, 2, 3]


def test_news_of_endpoints_that_left_is_ignored(fleet, facts):
    fleet.probe_succeeded("h:9", facts(), 0.0)
    fleet.probe_failed("h:9", "late", 0.0)
    fleet.load_reported("h:9", LoadReport(0, 1, 0, 0.1), 0.0)
    fleet.drain("h:9")
    assert fleet.endpoints == ()


def test_a_restart_with_other_facts(fleet, facts, shadow_residency):
    join(fleet, facts(), 1)
    first = fleet.candidates[0]
    fleet.probe_succeeded("h:1", facts(blocks=100), 1.0)
    assert fleet.candidates[0] is first
    assert first.capacity_blocks == 100
    assert shadow_residency.calls[-1] == ("configure", 0)
    fleet.probe_succeeded("h:1", facts(ranks=2), 2.0)
    assert not first.live
    assert [c.id for c in fleet.candidates] == ["h:1#0", "h:1#1"]


def test_an_ejected_workers_approximate_cache_is_forgotten_and_an_exact_one_kept(fleet, facts, shadow_residency):
    for port, events in ((1, True), (2, False)):
        join(fleet, facts(events=events), port)
        for second in range(3):
            fleet.probe_failed(f"h:{port}", "refused", second)
        fleet.probe_succeeded(f"h:{port}", facts(events=events), 4.0)
    assert states(fleet) == [WorkerState.HALF_OPEN] * 2
    assert [call for call in shadow_residency.calls if call[0] == "remove"] == [("remove", 1)]


def test_a_worker_back_before_it_was_ejected_loses_its_guessed_cache(fleet, facts, shadow_residency):
    for port, events in ((1, True), (2, False)):
        join(fleet, facts(events=events), port)
        fleet.restarted(f"h:{port}", 0.0)
    fleet.restarted("h:9", 0.0)
    assert states(fleet) == [WorkerState.READY] * 2
    assert [call for call in shadow_residency.calls if call[0] == "remove"] == [("remove", 1)]


def test_a_self_test_answered_ends_the_half_open_state(fleet, facts):
    one = fleet.add(endpoint(1), 0.0)
    traffic.succeeded(fleet, one, trial=True, complete=True)
    assert one.state is WorkerState.STARTING
    fleet.probe_succeeded("h:1", facts(), 0.0)
    for second in range(3):
        fleet.probe_failed("h:1", "refused", second)
    traffic.succeeded(fleet, one, trial=True, complete=True)
    assert (one.state, fleet.serving) == (WorkerState.UNHEALTHY, 0)
    fleet.probe_succeeded("h:1", facts(), 4.0)
    assert (one.state, fleet.serving) == (WorkerState.HALF_OPEN, 1)
    traffic.succeeded(fleet, one, trial=True, complete=True)
    assert (one.state, fleet.serving) == (WorkerState.READY, 1)


def test_workers_that_cache_nothing_are_said_to(fleet, shadow_residency):
    from backends.worker import RankCache

    fleet.add(endpoint(1), 0.0)
    fleet.probe_succeeded("h:1", WorkerFacts(caches={0: RankCache(16, 100, False)}), 0.0)
    assert ("self_test", 0, Residency.OFF) in shadow_residency.calls


def test_states_and_their_reasons(fleet, facts):
    one = join(fleet, facts(sleeping=True), 1)
    assert one.state is WorkerState.ASLEEP
    assert "sleep" in one.reason
    fleet.probe_succeeded("h:1", facts(), 1.0)
    assert one.state is WorkerState.READY
    fleet.drain("h:1")
    assert one.state is WorkerState.DRAINING
    assert "drained" in one.reason
    fleet.undrain("h:1")
    assert one.state is WorkerState.READY


def test_on_change_fires_when_a_worker_becomes_available(fleet, facts):
    fired = []
    fleet.on_change.append(lambda: fired.append(1))
    one = fleet.add(endpoint(1), 0.0)
    assert not fired
    fleet.probe_succeeded("h:1", facts(), 0.0)
    assert len(fired) == 1
    fleet.probe_succeeded("h:1", facts(), 1.0)
    assert len(fired) == 1
    fleet.probe_succeeded("h:1", facts(models=("m", "n")), 2.0)  # a request may wait for the new adapter
    assert len(fired) == 2
    fleet.drain("h:1")
    fleet.undrain("h:1")
    assert len(fired) == 3
    for _ in range(3):
        traffic.failed(fleet, one, "reset", 3.0, trial=False)
    assert len(fired) == 3
    fleet.probe_succeeded("h:1", facts(models=("m", "n")), 5.0)
    assert one.state is WorkerState.HALF_OPEN
    assert len(fired) == 4
    one.health.trial_running = True
    traffic.trial_given_up(fleet, one)
    assert len(fired) == 5
    traffic.succeeded(fleet, one, trial=True, complete=False)
    assert len(fired) == 6


def test_on_loss_fires_for_what_probes_eject_and_what_is_removed(fleet, facts):
    lost = []
    fleet.on_loss.append(lambda one: lost.append(one.id))
    for port in range(1, 5):
        join(fleet, facts(), port)
    one = fleet.get("h:1")
    for second in range(2):
        fleet.probe_failed("h:1", "timed out", second)
    assert not lost and not fleet.lost(one)
    for second in range(2, 5):
        fleet.probe_failed("h:1", "timed out", second)
    assert lost == ["h:1"] and fleet.lost(one)  # and not twice
    for _ in range(3):
        traffic.failed(fleet, fleet.get("h:2"), "reset", 3.0, trial=False)
    assert fleet.get("h:2").state is WorkerState.UNHEALTHY
    fleet.drain("h:3")
    fleet.remove("h:3")
    assert lost == ["h:1"]
    fleet.remove("h:4")
    assert lost == ["h:1", "h:4"]
    fleet.probe_succeeded("h:1", facts(), 9.0)
    assert not fleet.lost(one)
    fleet.remove("h:1")
    fleet.add(endpoint(1), 9.0)
    assert fleet.lost(one) and not fleet.lost(fleet.get("h:1"))


def test_loads_reach_the_right_rank(fleet, facts):
    seen = []
    fleet.on_load.append(lambda candidate, report, now_s: seen.append((candidate.id, report.running, now_s)))
    join(fleet, facts(ranks=2), 1)
    join(fleet, facts(), 2)
    fleet.load_reported("h:1", LoadReport(1, 7, 0, 0.1), 3.0)
    fleet.load_reported("h:2", LoadReport(0, 5, 0, 0.1), 4.0)
    assert seen == [("h:1#1", 7, 3.0), ("h:2", 5, 4.0)]
    assert fleet.get("h:1").candidates[1].load.running == 7


def test_models_are_the_union_with_the_longest_context(fleet, facts):
    assert fleet.models.known("m") is None
    fleet.add(endpoint(1), 0.0)
    assert fleet.models.known("m") is None
    fleet.probe_succeeded("h:1", facts(models=("m",), max_model_len=1_000), 0.0)
    fleet.add(endpoint(2), 0.0)
    cards = (ServedModel("m", max_model_len=9_000), ServedModel("sql", parent="m"))
    fleet.probe_succeeded("h:2", WorkerFacts(models=cards), 0.0)
    assert [(card.id, card.max_model_len) for card in fleet.models.served()] == [("m", 9_000), ("sql", None)]
    assert fleet.models.known("sql") is True
    assert fleet.models.known("x") is False
    assert fleet.models.adapter("sql") == "sql"
    assert fleet.models.adapter("m") is None
    assert fleet.models.adapter(None) is None
    assert fleet.get("h:2").lengths == {"m": 9_000, "sql": 9_000}
    fleet.add(endpoint(3), 0.0)
    assert fleet.models.known("x") is None  # its first probe has not ended
    fleet.probe_failed("h:3", "refused", 0.0)
    assert fleet.models.known("x") is False and [unheard.id for unheard in fleet.unheard] == ["h:3"]
    fleet.probe_succeeded("h:3", WorkerFacts(), 0.0)
    assert fleet.models.known("x") is None  # it needs an API key, so its models are not listed


def test_a_model_whose_only_worker_is_down_is_still_known(fleet, facts):
    fleet.add(endpoint(1), 0.0)
    fleet.add(endpoint(2), 0.0)
    fleet.probe_succeeded("h:1", facts(models=("m",)), 0.0)
    fleet.probe_succeeded("h:2", facts(models=("n",)), 0.0)
    for second in range(5):
        fleet.probe_failed("h:2", "refused", float(second))
    assert fleet.get("h:2").state is WorkerState.UNHEALTHY
    assert fleet.models.known("n") is True


def test_a_first_probe_that_fails_is_announced(fleet):
    changes = []
    fleet.on_change.append(lambda: changes.append("change"))
    fleet.add(endpoint(1), 0.0)
    for _ in range(3):
        fleet.probe_failed("h:1", "refused", 0.0)
    assert changes == ["change"]


def test_candidate_sets_follow_every_change_and_stay_bounded(fleet, facts):
    fleet.add(endpoint(1), 0.0)
    assert fleet.candidate_sets.of("m").able == ()
    fleet.probe_succeeded("h:1", facts(), 0.0)
    assert [c.id for c in fleet.candidate_sets.of("m").ready] == ["h:1"]
    assert fleet.candidate_sets.of("x").able == ()
    fleet.drain("h:1")
    assert fleet.candidate_sets.of("m").ready == ()
    assert len(fleet.candidate_sets.of("m").able) == 1
    for number in range(3_000):
        fleet.candidate_sets.of(f"made up {number}")
    assert len(fleet.candidate_sets._whole) <= 1_024
