import pytest

from loadtest.admission.contest import QUEUES, play
from loadtest.admission.loads import Drawing, Load
from loadtest.sim.outcome import Ending
from router.placement.admission.classes import Claim, RequestClass

CHAT = RequestClass("chat", share=1.0, floor=0.5, ttft_s=0.5, tpot_s=0.03)
BATCH = RequestClass("batch", share=0.0)


def load(chats=40, lanes=300):
    drawing = Drawing(0)
    for lane in range(lanes):
        drawing.add(Claim(BATCH, f"job-{lane % 3}"), 0.0, (512, 60), (512, 60))
    for number in range(chats):
        drawing.add(Claim(CHAT), 2.0 + 0.2 * number, (512, 16))
    return drawing.load((CHAT, BATCH), 30.0)


@pytest.mark.parametrize("queue", QUEUES)
def test_every_call_ends_once(queue):
    wanted = load(10, 40)
    played = play(wanted, queue, 0)
    assert sorted(one.id for one in played.outcomes) == sorted(
        f"{session.id}/{number}" for session in wanted.sessions for number in range(len(session.calls))
    )
    assert {one.ending for one in played.outcomes} == {Ending.FINISHED}


def test_equal_seeds_give_equal_orders():
    first, again = (play(load(), "warmroute", 3) for _ in range(2))
    assert [(one.id, one.ended_s) for one in first.outcomes] == [(one.id, one.ended_s) for one in again.outcomes]


def test_a_burst_of_batch_work_does_not_delay_chats():
    wanted = load()
    found = {queue: play(wanted, queue, 0).ttft_s(_chat, 0.95, 0.0) for queue in ("none", "warmroute")}
    assert found["warmroute"] < 0.5 * found["none"]


def test_a_client_that_leaves_while_it_waits_leaves_nothing():
    drawing = Drawing(0)
    for _ in range(300):
        drawing.add(Claim(BATCH), 0.0, (2_000, 16))
    wanted = drawing.load((CHAT, BATCH), 10.0)
    for session in wanted.sessions[150:]:
        session.calls[0].leaves_after_s = 0.5
    played = play(wanted, "warmroute", 0)
    assert len(played.outcomes) == 300
    left = [one for one in played.outcomes if one.ending is Ending.LEFT]
    assert left
    assert all(one.ended_s == pytest.approx(0.5) for one in left)


def _chat(claim):
    return claim.of is CHAT


def test_the_load_is_a_load():
    assert isinstance(load(), Load)
