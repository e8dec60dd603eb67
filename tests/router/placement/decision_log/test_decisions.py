import msgspec
import pytest

from policies.lazy_terms import LazyTerms
from policies.view import Decision, FleetView, RequestView, Residency, WorkerId, WorkerView
from router.placement.decision_log.decisions import CANDIDATES_KEPT, DecisionLog, DecisionRecord, memory_of


def view(name):
    return WorkerView(WorkerId(name), Residency.EXACT, 0, 10, 0, 0, 0, 0, 0.5, 0.25, 0.0)


@pytest.fixture(params=["rows", "columns"])
def decided(request):
    def make(number, names="abcd", chosen="b"):
        workers = tuple(view(name) for name in names)
        ranked = tuple(one.id for one in reversed(workers))
        fleet = FleetView(float(number), workers)
        if request.param == "columns":
            fleet = FleetView(fleet.now_s, None, fleet.roster, fleet.columns)
        terms = LazyTerms(fleet, lambda place: {"queue_wait_s": fleet.worker(place).queue_wait_s})
        decision = Decision(ranked, "least", tuple(float(ord(name)) for name in ranked), "s", terms)
        asked = RequestView(f"r{number}", "m", 10, 16, ())
        record = DecisionRecord(fleet.now_s, "default", "p", True, asked, fleet, decision, ticket_id=number)
        record.worker, record.residency, record.predicted_cached_tokens = WorkerId(chosen), Residency.EXACT, 0
        return record

    return make


def known(log):
    return [(one["request_id"], [each["worker"] for each in one["candidates"]]) for one in told(log)]


def held(log):
    return sum(record in log.whole for record in log.latest(10_000))


def told(log):
    return [record.to_builtins() for record in log.latest(100)]


def test_older_decisions_know_their_chosen_candidate_only(decided):
    records = [decided(number) for number in range(4)]
    log = DecisionLog(10, candidates_kept=2 * memory_of(records[0].fleet))
    for record in records:
        log.add(record)
    everyone = ["d", "c", "b", "a"]
    assert known(log) == [("r3", everyone), ("r2", everyone), ("r1", ["b"]), ("r0", ["b"])]
    whole, thin = told(log)[0]["candidates"], told(log)[-1]["candidates"]
    assert thin == [whole[2]] and thin[0]["terms"] == {"queue_wait_s": 0.5} and thin[0]["cost"] == float(ord("b"))


def test_the_latest_one_is_whole_however_many_workers_there_are(decided):
    log = DecisionLog(10, candidates_kept=2)
    log.add(decided(0))
    log.add(decided(1))
    assert known(log) == [("r1", ["d", "c", "b", "a"]), ("r0", ["b"])]


def test_what_falls_out_is_not_counted_any_longer(decided):
    log = DecisionLog(2, candidates_kept=3 * memory_of(decided(0).fleet))
    for number in range(50):
        log.add(decided(number))
    assert [len(candidates) for _, candidates in known(log)] == [4, 4]
    log.add(decided(50, names="abcdefghi"))
    assert [len(candidates) for _, candidates in known(log)] == [9, 1]


def test_a_thousand_decisions_among_512_workers_keep_all_candidates(decided):
    one, log = decided(0, names=[chr(65 + number) for number in range(512)]), DecisionLog(2_000)
    for number in range(1_200):
        log.add(msgspec.structs.replace(one, ticket_id=number))
    assert held(log) == CANDIDATES_KEPT // memory_of(one.fleet) == (256 if one.fleet.is_small else 1_024)


def test_a_fleet_whose_views_the_policy_has_read_counts_for_what_it_takes(decided):
    read = decided(0)
    before = memory_of(read.fleet)
    assert len(read.fleet.workers) == 4
    assert memory_of(read.fleet) == (before if read.fleet.is_small else 5 * before)


@pytest.mark.parametrize(("other", "kept"), [(1.0, 4), (2.0, 2)])
def test_uneven_weights_count_twice_for_the_weighted_fleet_of_the_costs(decided, other, kept):
    one = decided(0)
    views = [msgspec.structs.replace(view(name), weight=other if name == "a" else 1.0) for name in "abcd"]
    fleet = FleetView(0.0, tuple(views))
    if not one.fleet.is_small:
        fleet = FleetView(0.0, None, fleet.roster, fleet.columns)
    log = DecisionLog(10, candidates_kept=4 * memory_of(fleet))
    for number in range(6):
        log.add(msgspec.structs.replace(one, ticket_id=number, fleet=fleet))
    assert held(log) == kept


def test_a_record_that_is_shown_makes_no_views_that_stay(decided):
    record = decided(0)
    before = memory_of(record.fleet)
    assert len(record.to_builtins()["candidates"]) == 4
    assert memory_of(record.fleet) == before


def test_nothing_is_kept_where_nothing_is_asked_for(decided):
    log = DecisionLog(0)
    log.add(decided(0))
    assert log.latest(10) == []


def test_a_decision_without_prices_is_thinned_too(decided):
    record = decided(0)
    record.decision = Decision(record.decision.ranked, "in turn")
    record.thin()
    (left,) = record.to_builtins()["candidates"]
    assert (left["worker"], left["cost"], left["terms"]) == ("b", None, {})
