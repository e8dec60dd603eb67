from random import Random

import pytest

from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.shadow import ShadowAdmission
from router.placement.request import Request, Usage
from router.placement.tickets import Ticket
from tests.router.placement.conftest import make_prompt

LONG = 8_000
"""Half a second of work, at the speed assumed until one is learned."""
CHAT = RequestClass("chat", share=1.0)
BATCH = RequestClass("batch", share=0.0)
HASTY = RequestClass("hasty", share=1.0, max_wait_s=0.7)
CLASSES = [CHAT, HASTY, BATCH]


class Shadow:
    """Sends every request at once, and asks what would have become of it."""

    def __init__(self, make_admission):
        rig = make_admission(CLASSES)
        self.core = rig.core
        self.admission = ShadowAdmission(CLASSES, rig.core.dispatcher, rig.fleet, rig.core.loads, rig.core.tickets)
        self.tickets = {}
        self.now_s = 0.0

    def ask(self, name, of, tokens=LONG):
        prompt = make_prompt([Random(name).randrange(9_999) for _ in range(tokens)])
        request = Request(name, "/v1/completions", "m", prompt, prompt.tokens, self.now_s)
        ticket = self.core.dispatcher.dispatch(request, self.now_s)
        assert isinstance(ticket, Ticket), "nothing is held or refused"
        self.tickets[name] = ticket
        return self.admission.judge(ticket, Claim(of), self.now_s)

    def end(self, name):
        self.core.tickets.first_token(self.tickets[name], self.now_s)
        self.core.tickets.finished(self.tickets.pop(name), Usage(None, 10), self.now_s)

    @property
    def counts(self):
        return {key: count for key, count in self.admission.counts.items() if count}


@pytest.fixture
def shadow(make_admission):
    return Shadow(make_admission)


def test_it_says_who_would_wait_and_who_would_be_refused(shadow):
    assert shadow.ask("a", CHAT) == "sent"
    assert shadow.ask("b", CHAT) == "waits"
    assert shadow.ask("c", HASTY) == "refused"
    assert shadow.counts == {("chat", "sent"): 1, ("chat", "waits"): 1, ("hasty", "refused"): 1}


def test_work_that_would_wait_is_not_in_the_way_of_the_others(shadow):
    assert shadow.ask("small", BATCH, 1_000) == "sent"
    assert shadow.ask("large", BATCH) == "sent"
    assert [shadow.ask(f"batch-{number}", BATCH) for number in range(5)] == ["waits"] * 5
    assert shadow.ask("chat", CHAT) == "sent", "a large prompt of a batch job would give way"
    assert shadow.counts["batch", "gives_way"] == 1
    assert len(shadow.admission) == 6


def test_a_request_that_would_wait_has_its_turn_once_there_is_room(shadow):
    shadow.ask("a", CHAT)
    shadow.ask("b", CHAT)
    shadow.now_s = 0.6
    shadow.end("a")
    assert shadow.ask("c", BATCH) == "waits"
    assert len(shadow.admission) == 1, "b had its turn"


def test_one_that_would_be_refused_after_its_wait(shadow):
    shadow.ask("a", CHAT)
    assert shadow.ask("b", HASTY, 1_000) == "waits"
    shadow.now_s = 0.8
    shadow.ask("c", BATCH)
    assert shadow.counts["hasty", "expires"] == 1


def test_nothing_stays_of_requests_that_have_ended(shadow):
    for number in range(20):
        shadow.ask(f"chat-{number}", CHAT)
        shadow.ask(f"batch-{number}", BATCH)
    for name in list(shadow.tickets):
        shadow.now_s += 0.1
        shadow.end(name)
    admission = shadow.admission
    assert len(admission) == len(admission._judged) == len(admission._running) == 0
    assert not admission._preemption
    assert admission._without._absent == {}
