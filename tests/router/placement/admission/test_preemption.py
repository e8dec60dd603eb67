import pytest

from router.placement.admission.admission import Waits
from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.preemption import MOST_TIMES
from router.placement.tickets import Ticket

LONG, SHORT = 8_000, 1_000
"""Half a second of work, and a sixteenth, at the speed assumed until one is learned."""
CHAT = RequestClass("chat", share=0.5)
NORMAL = RequestClass("normal", share=0.5)
BATCH = RequestClass("batch", share=0.0)
KEEN = RequestClass("keen", share=0.0, preemptible=True)
CLASSES = (CHAT, NORMAL, BATCH, KEEN)


@pytest.fixture
def full(make_admission):
    """Return a rig whose only worker computes `first`, a long request of a class."""

    def make(of=BATCH, classes=CLASSES, **options):
        rig = make_admission(classes, preempts=True, **options)
        assert isinstance(rig.ask("first", Claim(of), LONG), Ticket)
        return rig

    return make


def test_a_sent_request_gives_way_keeps_its_place_and_is_charged_once(full, monkeypatch):
    rig, charged_s = full(), []
    queue, gone = rig.admission.queue("m"), rig.tickets["first"]
    charge, settle = queue.charge, queue._settle
    monkeypatch.setattr(queue, "charge", lambda *args: (charged_s.append(args[1]), charge(*args)))
    monkeypatch.setattr(queue, "_settle", lambda *args: (charged_s.append(args[1]), settle(*args)))
    rig.now_s = 0.1
    assert isinstance(rig.ask("later", Claim(BATCH), LONG), Waits)
    rig.ask("chat", Claim(CHAT), LONG)
    assert rig.turn() == ["chat"]
    assert sum(charged_s) == pytest.approx(0.0), "the charge of one was given back, that of the other taken"
    assert gone.record.outcome == "gave way to a request of class chat"
    assert rig.tickets["chat"].record.decision.reason.endswith("a request of class batch gave way")
    assert rig.drain() == ["first", "later"]
    assert rig.answers["first"].record.decision.reason.endswith("it gave way 1 times before")
    assert rig.core.statistics()["retried"] == 0


def test_at_arrival_it_needs_no_turn(full):
    rig = full()
    assert isinstance(rig.ask("chat", Claim(CHAT), LONG), Ticket)
    assert len(rig.admission) == 1


@pytest.mark.parametrize(("first", "asks"), [(CHAT, CHAT), (CHAT, NORMAL), (NORMAL, BATCH), (BATCH, KEEN)])
def test_nobody_gives_way_for_its_own_class_or_a_later_one(full, first, asks):
    rig = full(first)
    assert isinstance(rig.ask("asks", Claim(asks), LONG), Waits)
    assert rig.turn() == []
    assert rig.asked_to_leave == []


def test_nobody_gives_way_while_another_worker_has_room(full):
    rig = full(workers=2)
    assert isinstance(rig.ask("chat", Claim(CHAT), LONG), Ticket)
    assert rig.asked_to_leave == []


def test_nobody_gives_way_without_demand(full):
    rig = full()
    for _ in range(3):
        rig.now_s += 0.1
        rig.turn()
    assert rig.asked_to_leave == []


def test_nobody_gives_way_if_that_makes_no_room(make_admission):
    rig = make_admission(CLASSES, preempts=True)
    rig.ask("small", Claim(BATCH), SHORT)
    rig.ask("chat", Claim(CHAT), LONG)
    assert set(rig.tickets) == {"small", "chat"}
    assert isinstance(rig.ask("another", Claim(CHAT), LONG), Waits)
    assert rig.turn() == []
    assert rig.asked_to_leave == []


def test_nobody_gives_way_for_a_wait_that_is_about_to_end(full):
    rig = full()
    rig.end("first")
    rig.ask("mid", Claim(BATCH), 3_500)
    assert isinstance(rig.ask("chat", Claim(CHAT), LONG), Waits), "there is room in 0.02 s"
    assert rig.asked_to_leave == []


@pytest.mark.parametrize(("of", "begun", "leaves"), [(BATCH, False, True), (BATCH, True, False), (KEEN, True, True)])
def test_an_answer_that_has_begun_stays_unless_its_class_is_preemptible(full, of, begun, leaves):
    rig = full(of, max_requests_per_worker=1)
    if begun:
        rig.first_token("first")
    rig.ask("chat", Claim(CHAT), LONG)
    assert ("chat" in rig.tickets) is leaves
    assert rig.asked_to_leave == (["first"] if leaves else [])
    assert len(rig.admission) == (leaves and not begun), "an answer that has begun does not wait again"


def test_a_request_gives_way_only_so_often(full):
    rig = full()
    for number in range(MOST_TIMES + 1):
        rig.ask(f"chat-{number}", Claim(CHAT), LONG)
        rig.turn()
        if number < MOST_TIMES:
            assert f"chat-{number}" in rig.tickets
            rig.end(f"chat-{number}")
            assert rig.turn() == ["first"]
    assert "first" in rig.tickets
    assert rig.asked_to_leave == ["first"] * MOST_TIMES


def test_the_newest_request_of_the_last_class_gives_way(make_admission):
    rig = make_admission(CLASSES, preempts=True)
    for name, of, tokens in (("normal", NORMAL, 1_300), ("old", BATCH, 500), ("new", BATCH, 2_600)):
        rig.ask(name, Claim(of), tokens)
        rig.now_s += 0.001
    assert set(rig.tickets) == {"normal", "old", "new"}
    assert isinstance(rig.ask("chat", Claim(CHAT), LONG), Ticket)
    assert rig.asked_to_leave == ["new"]


def test_a_starved_request_and_one_that_has_waited_for_as_long_as_it_may_stay(full):
    starved = RequestClass("batch", share=0.0, starvation_s=5.0)
    rig = full(starved, (CHAT, starved))
    rig.now_s = 5.0
    assert isinstance(rig.ask("chat", Claim(CHAT), LONG), Waits)
    short_lived = RequestClass("batch", share=0.0, max_wait_s=1.0)
    rig = full(short_lived, (CHAT, short_lived))
    rig.now_s = 1.0
    assert isinstance(rig.ask("chat", Claim(CHAT), LONG), Waits)


def test_a_class_that_has_used_more_than_its_share_displaces_only_those_without_one(make_admission):
    for of, leaves in ((NORMAL, False), (BATCH, True)):
        rig = make_admission(CLASSES, preempts=True)
        for number in range(5):
            rig.ask(f"chat-{number}", Claim(CHAT), LONG)
            rig.end(f"chat-{number}")
        rig.ask("first", Claim(of), LONG)
        rig.ask("chat", Claim(CHAT), LONG)
        assert (rig.asked_to_leave == ["first"]) is leaves


def test_a_request_whose_answer_comes_stays_and_is_asked_once(full):
    rig = full()
    rig.bound.add("first")
    assert isinstance(rig.ask("chat", Claim(CHAT), LONG), Waits)
    assert rig.turn() == []
    assert rig.asked_to_leave == ["first"]
    rig.end("first")
    assert rig.turn() == ["chat"]


def test_explain_says_that_another_request_would_give_way(full):
    rig = full()
    rig.ask("chat", Claim(CHAT), LONG)
    request = rig.requests["chat"]
    rig.end("chat")
    rig.turn()
    found = rig.admission.explained(request, Claim(CHAT), rig.now_s)
    assert (found["action"], found["reason"]) == ("dispatch", "a request of a later class gives way")
    assert "first" in rig.tickets, "nothing has changed"
