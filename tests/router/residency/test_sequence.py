from router.residency import sequence
from router.residency.sequence import EventSequence
from router.residency.view import IngestOutcome as Outcome


def at(seq, *, content=b"p"):
    return seq, content + str(seq).encode()


def following(count):
    events = EventSequence()
    for seq in range(count):
        assert events.offer(*at(seq)).outcome is Outcome.APPLIED
    return events


def seqs(step):
    return [seq for seq, _ in step.ready]


def test_in_order_from_zero_is_verified():
    assert following(3).verified and following(3).next_seq == 3


def test_gap_is_filled():
    events = following(3)
    step = events.offer(*at(5))
    assert (step.outcome, step.replay_from, step.ready) == (Outcome.GAP, 3, [])
    assert events.offer(*at(6)).outcome is Outcome.BUFFERED
    assert seqs(events.offer_replayed(*at(3))) == [3]
    assert seqs(events.offer_replayed(*at(4))) == [4]
    step = events.replay_ended(True)
    assert (seqs(step), step.lost, step.replay_from) == ([5, 6], None, None)
    assert not events.replaying and events.next_seq == 7
    assert events.statistics()["gaps"] == 1


def test_a_replay_beyond_the_gap_makes_live_batches_stale():
    events = following(1)
    events.offer(*at(2))
    for seq in (1, 2, 3):
        assert seqs(events.offer_replayed(*at(seq))) == [seq]
    step = events.replay_ended(True)
    assert (step.ready, step.lost) == ([], None)
    step = events.offer(*at(3))
    assert step.outcome is Outcome.STALE and not step.restarted
    assert seqs(events.offer(*at(4))) == [4]


def test_a_live_stream_far_behind_its_replay_is_not_a_restart():
    events = EventSequence()
    events.link_up()
    for seq in range(1000):
        events.offer_replayed(*at(seq))
    events.replay_ended(True)
    for seq in range(500, 1000):
        assert events.offer(*at(seq)).outcome is Outcome.STALE
    assert seqs(events.offer(*at(1000))) == [1000]
    assert events.offer(*at(600)).restarted, "but a live stream never goes back"


def test_a_gap_without_a_replay_is_a_loss():
    events = following(3)
    events.offer(*at(5))
    events.offer(*at(8))
    step = events.replay_ended(False)
    assert (seqs(step), step.lost) == ([8], (6, 8))
    assert seqs(events.offer(*at(9))) == [9]


def test_a_replay_that_begins_too_late_is_a_loss():
    events = following(3)
    events.offer(*at(9))
    step = events.offer_replayed(*at(6))
    assert (seqs(step), step.lost) == ([6], (3, 6))
    events.offer_replayed(*at(7))
    step = events.replay_ended(True)
    assert step.replay_from == 8, "progress was made, so once more"
    step = events.replay_ended(True)
    assert (seqs(step), step.lost, step.replay_from) == ([9], (8, 9), None)


def test_first_subscription_asks_from_zero():
    events = EventSequence()
    assert events.link_up().replay_from == 0
    assert not events.verified
    events.replay_ended(True)
    assert events.verified and events.next_seq == 0


def test_first_subscription_without_a_replay_is_unverified_until_the_first_batch():
    events = EventSequence()
    events.link_up()
    events.replay_ended(False)
    assert not events.verified
    events.offer(*at(0))
    assert events.verified


def test_a_first_batch_above_zero_is_a_gap_from_zero():
    assert EventSequence().offer(*at(7)).replay_from == 0


def test_a_restart_at_zero_is_detected():
    events = following(3)
    step = events.offer(*at(0, content=b"new"))
    assert (step.outcome, seqs(step), step.restarted) == (Outcome.RESTARTED, [0], True)
    assert events.next_seq == 1


def test_restart_above_zero_asks_from_zero():
    events = following(9)
    step = events.offer(*at(2, content=b"new"))
    assert (step.outcome, step.restarted, step.replay_from, step.ready) == (Outcome.RESTARTED, True, 0, [])
    events.offer_replayed(*at(0, content=b"new"))
    events.offer_replayed(*at(1, content=b"new"))
    assert seqs(events.replay_ended(True)) == [2]


def test_the_same_batch_again_is_stale():
    events = following(3)
    step = events.offer(*at(1))
    assert step.outcome is Outcome.STALE and not step.restarted


def test_a_number_too_old_to_compare_is_a_restart():
    assert following(1000).offer(*at(2)).restarted


def test_a_restart_during_a_replay_is_detected():
    events = following(3)
    events.offer(*at(9))
    step = events.offer(*at(0, content=b"new"))
    assert step.restarted and seqs(step) == [0] and not events.replaying
    assert events.offer_replayed(*at(3)).outcome is Outcome.STALE
    assert events.replay_ended(False).outcome is Outcome.STALE


def test_a_restart_among_pending_batches_is_detected():
    events = following(3)
    events.offer(*at(9))
    assert events.offer(*at(9)).outcome is Outcome.STALE
    assert events.offer(*at(9, content=b"new")).restarted


def test_the_same_publisher_after_a_reconnect_is_verified():
    events = following(3)
    events.link_lost()
    assert not events.verified
    assert events.link_up().replay_from == 2, "the last batch applied is asked for too"
    assert events.offer_replayed(*at(2)).outcome is Outcome.STALE
    assert seqs(events.offer_replayed(*at(3))) == [3]
    events.replay_ended(True)
    assert events.verified and events.restarts == 0


def test_another_publisher_with_other_content_is_a_restart():
    events = following(3)
    events.link_up()
    step = events.offer_replayed(*at(2, content=b"new"))
    assert step.restarted and step.replay_from is None
    assert events.offer_replayed(*at(3, content=b"new")).ready == []
    assert events.replay_ended(True).replay_from == 0
    for seq in range(4):
        assert seqs(events.offer_replayed(*at(seq, content=b"new"))) == [seq]
    events.replay_ended(True)
    assert events.verified and events.next_seq == 4


def test_another_publisher_with_fewer_batches_is_a_restart():
    events = following(3)
    events.link_up()
    step = events.replay_ended(True)
    assert step.restarted and step.replay_from == 0
    events.replay_ended(True)
    assert events.verified and events.next_seq == 0


def test_a_reconnect_without_a_replay_is_verified_by_the_next_number():
    events = following(3)
    events.link_lost()
    events.link_up()
    events.replay_ended(False)
    assert not events.verified
    events.offer(*at(3))
    assert events.verified and events.restarts == 0
    assert events.assumed, "another publisher might have come to the same number"
    events.forget_assumptions()
    assert not events.assumed


def test_batches_that_wait_for_a_replay_are_bounded(monkeypatch):
    monkeypatch.setattr(sequence, "PENDING_BYTES", 1000)
    events = following(1)
    for seq in range(2, 50):
        events.offer(*at(seq))
    assert len(events._pending) <= 5
    events.offer_replayed(*at(1))
    step = events.replay_ended(True)
    assert seqs(step)[-1] < 10
    assert events.offer(*at(50)).outcome is Outcome.GAP
