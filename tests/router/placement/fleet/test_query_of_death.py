import pytest

from router.placement.fleet.query_of_death import (
    BODIES_KEPT,
    DYING_S,
    ERROR_DOUBT_S,
    INCIDENTS_KEPT,
    MAX_BODIES,
    PROOF_S,
    SERVED_KEPT,
    SERVED_S,
    BodyVerdict,
    OwnDeaths,
    QueryOfDeathTracker,
    Served,
)

BAD, GOOD = 1, 2


@pytest.fixture
def tracker():
    return QueryOfDeathTracker(600.0)


def dies(tracker, worker, bodies, now_s, lost=True):
    tracker.open(worker, bodies[0], bodies[1:], now_s, lost=lost)
    return tracker.gone(worker, now_s + 0.1)


def test_a_lost_connection_is_no_death_until_proven(tracker):
    tracker.open("a", BAD, [], 0.0, lost=True)
    assert tracker.verdict(BAD, 0.1) is BodyVerdict.ONE_MORE
    assert tracker.waits("a", 0.1)
    assert tracker.verdict(BAD, PROOF_S) is BodyVerdict.FREE
    assert tracker.gone("a", PROOF_S + 1.0) == []
    assert not tracker.stirred


def test_two_proven_deaths_refuse_the_body_for_the_time_set(tracker):
    assert dies(tracker, "a", [BAD], 0.0) == ["blamed"]
    assert tracker.verdict(BAD, 1.0) is BodyVerdict.ONE_MORE
    dies(tracker, "b", [BAD], 100.0)
    assert tracker.verdict(BAD, 101.0) is BodyVerdict.REFUSED
    assert tracker.refused_for_s(BAD, 101.0) == pytest.approx(599.0)
    assert tracker.verdict(BAD, 699.0) is BodyVerdict.REFUSED
    assert tracker.verdict(BAD, 701.0) is BodyVerdict.FREE
    assert tracker.active(699.0) and not tracker.active(701.0)


def test_deaths_that_lie_too_far_apart_do_not_add_up(tracker):
    dies(tracker, "a", [BAD], 0.0)
    dies(tracker, "b", [BAD], 601.0)
    assert tracker.verdict(BAD, 602.0) is BodyVerdict.ONE_MORE


def test_two_losses_that_are_not_settled_keep_the_body_from_all_workers(tracker):
    dies(tracker, "a", [BAD], 0.0)
    tracker.open("b", BAD, [], 1.0, lost=True)
    assert tracker.verdict(BAD, 1.1) is BodyVerdict.DOUBTED
    tracker.lives("b", asked_s=1.05)
    assert tracker.verdict(BAD, 1.2) is BodyVerdict.ONE_MORE


def test_an_answer_that_was_asked_for_before_the_loss_proves_nothing(tracker):
    tracker.open("a", BAD, [], 1.0, lost=True)
    tracker.lives("a", asked_s=0.9)
    assert tracker.waits("a", 1.1)


def test_the_same_worker_may_die_twice(tracker):
    """The worker restarted unnoticed, so requests sent after the first loss went to another process."""
    tracker.open("a", BAD, [], 0.0, lost=True)
    assert tracker.known("a", -0.5, lost=True) is not None
    assert tracker.known("a", DYING_S, lost=True) is not None, "it was not quite dead"
    assert tracker.known("a", 0.9, lost=True) is None
    tracker.open("a", BAD, [], 1.0, lost=True)
    assert tracker.verdict(BAD, 1.0) is BodyVerdict.DOUBTED
    assert tracker.gone("a", 1.1) == ["blamed", "blamed"]
    assert tracker.verdict(BAD, 1.2) is BodyVerdict.REFUSED


def test_what_waited_at_the_first_loss_is_not_counted_for_the_second(tracker):
    tracker.open("a", BAD, [GOOD], 0.0, lost=True)
    tracker.open("a", BAD, [GOOD], 1.0, lost=True)
    tracker.gone("a", 1.1)
    assert tracker.verdict(BAD, 1.2) is BodyVerdict.REFUSED
    assert tracker.verdict(GOOD, 1.2) is BodyVerdict.ONE_MORE


def test_what_is_heard_of_a_death_after_its_proof_tells_of_the_same_one(tracker):
    tracker.open("a", GOOD, [BAD], 0.0, lost=True)
    tracker.gone("a", 0.1)
    late = tracker.known("a", -1.0, lost=True)
    tracker.join(late, BAD)
    tracker.join(late, 3)
    assert tracker.gone("a", 0.2) == []
    assert not tracker.waits("a", 0.2)
    assert [tracker.verdict(body, 0.3) for body in (GOOD, BAD, 3)] == [BodyVerdict.ONE_MORE] * 3
    assert tracker.known("a", 0.9, lost=True) is None


def test_a_death_among_too_many_bodies_counts_against_none(tracker):
    for worker in "ab":
        assert dies(tracker, worker, range(MAX_BODIES + 1), 0.0) == ["ambiguous"]
    assert all(tracker.verdict(body, 1.0) is BodyVerdict.FREE for body in range(MAX_BODIES + 1))
    for worker in "ab":
        assert dies(tracker, worker, range(MAX_BODIES), 0.0) == ["blamed"]
    assert all(tracker.verdict(body, 1.0) is BodyVerdict.REFUSED for body in range(MAX_BODIES))


def test_bodies_that_are_found_there_later_count_as_well(tracker):
    incident = tracker.open("a", 0, range(1, MAX_BODIES), 0.0, lost=True)
    tracker.join(incident, MAX_BODIES)
    assert tracker.gone("a", 0.1) == ["ambiguous"]
    assert tracker.verdict(0, 0.2) is BodyVerdict.FREE


def test_a_body_that_is_served_is_cleared(tracker):
    dies(tracker, "a", [BAD, GOOD], 0.0)
    tracker.open("b", BAD, [GOOD], 1.0, lost=True)
    tracker.survived(GOOD)
    tracker.gone("b", 1.1)
    assert tracker.verdict(GOOD, 1.2) is BodyVerdict.FREE
    assert tracker.verdict(BAD, 1.2) is BodyVerdict.REFUSED
    tracker.survived(BAD)
    assert tracker.verdict(BAD, 1.3) is BodyVerdict.FREE


def test_a_server_error_keeps_a_body_from_further_workers_for_a_moment_only(tracker):
    tracker.open("a", BAD, [], 0.0, lost=False)
    assert tracker.verdict(BAD, 0.1) is BodyVerdict.ONE_MORE
    tracker.open("b", BAD, [], 0.2, lost=False)
    assert tracker.verdict(BAD, 0.3) is BodyVerdict.NO_MORE
    assert sorted(tracker.erred(BAD, 0.3)) == ["a", "b"]
    assert tracker.verdict(BAD, 0.2 + ERROR_DOUBT_S) is BodyVerdict.FREE


def test_a_server_error_counts_when_the_worker_exits_soon_after(tracker):
    """vLLM does this when its engine has died. An answer of its server in between proves nothing."""
    for worker in "ab":
        tracker.open(worker, BAD, [], 0.0, lost=False)
        tracker.lives(worker, asked_s=1.0)
        assert tracker.gone(worker, 3.0) == ["blamed"]
    assert tracker.verdict(BAD, 4.0) is BodyVerdict.REFUSED


def test_errors_and_a_lost_connection_tell_of_one_death(tracker):
    tracker.open("a", BAD, [], 0.0, lost=False)
    tracker.open("a", GOOD, [], 0.1, lost=True)
    assert tracker.gone("a", 0.2) == ["blamed"]
    assert tracker.verdict(BAD, 0.3) is tracker.verdict(GOOD, 0.3) is BodyVerdict.ONE_MORE


def test_a_body_that_was_just_served_is_not_suspected(tracker):
    tracker.served.add(GOOD, 0.0)
    for worker, now_s in (("a", 1.0), ("b", 50.0)):
        dies(tracker, worker, [GOOD, BAD], now_s)
    assert tracker.verdict(GOOD, 51.0) is BodyVerdict.FREE
    assert tracker.verdict(BAD, 51.0) is BodyVerdict.REFUSED


def test_served_bodies_are_forgotten_after_a_minute_or_two():
    served = Served()
    served.add(1, 0.0)
    served.add(2, SERVED_S - 1)
    assert served.holds(1, SERVED_S - 1)
    served.add(3, SERVED_S + 1)
    assert served.holds(1, SERVED_S + 2) and served.holds(3, SERVED_S + 2)
    served.add(4, 2 * SERVED_S + 2)
    assert [served.holds(body, 2 * SERVED_S + 2) for body in (1, 2, 3, 4)] == [False, False, True, True]
    assert not served.holds(4, 5 * SERVED_S)
    served.add(5, 6 * SERVED_S)
    assert not served.holds(4, 6 * SERVED_S)


def test_served_bodies_are_bounded():
    served = Served()
    for body in range(3 * SERVED_KEPT):
        served.add(body, 1.0)
    held = sum(served.holds(body, 1.0) for body in range(3 * SERVED_KEPT))
    assert SERVED_KEPT <= held <= 2 * SERVED_KEPT


def test_memory_is_bounded(tracker):
    deaths = OwnDeaths()
    for body in range(BODIES_KEPT + 10):
        deaths.add(body, "a", 0.0)
        deaths.add(body, "b", 0.0)
        deaths.add(body, "c", 1.0)
    assert deaths.times(0) == ()
    assert deaths.latest_s == 1.0
    assert deaths.times(BODIES_KEPT + 9) == (0.0, 1.0)
    for number in range(INCIDENTS_KEPT + 10):
        tracker.open(f"worker-{number}", BAD, [], 0.0, lost=True)
    assert tracker.statistics()["incidents"] == INCIDENTS_KEPT
