"""Classes of several processes: each has a queue of its own, and all see the load that each reserves."""

import os

import pytest

from router.placement.admission.admission import Waits
from router.placement.admission.classes import Claim, RequestClass
from router.placement.tickets import Ticket
from router.process.shared_memory.ledger import Ledger, make_table
from tests.router.placement.admission.conftest import AdmissionRig

CHAT, BATCH = RequestClass("chat", floor=0.5), RequestClass("batch", share=0.0)
LONG = 8_000
"""A prompt of half a second, more than a worker's headroom, at the speed assumed until one is learned."""
PROCESSES = 3


@pytest.fixture
def rigs():
    """The queues of three processes over the same worker."""
    table = make_table(PROCESSES)
    yield [AdmissionRig((CHAT, BATCH), ledger=Ledger(table, PROCESSES, number)) for number in range(PROCESSES)]
    os.close(table)


def test_a_request_waits_for_the_load_of_another_process_and_goes_when_that_ends(rigs):
    one, other, _ = rigs
    assert isinstance(one.ask("first", Claim(BATCH), LONG), Ticket)
    assert isinstance(other.ask("second", Claim(CHAT), LONG), Waits)
    assert other.turn() == []
    one.end("first")
    assert other.turn() == ["second"]


def test_processes_together_admit_no_more_than_one(rigs):
    """What a process reserves is seen at once, so processes that decide in turn use no room twice."""
    asked = [rig.ask(f"{number}", Claim(BATCH), LONG) for number in range(4) for rig in rigs]
    assert sum(isinstance(one, Ticket) for one in asked) == 1
    for _ in range(len(asked) - 1):
        running = [rig for rig in rigs if rig.tickets]
        assert len(running) == 1
        running[0].end(next(iter(running[0].tickets)))
        assert sum(len(rig.turn()) for rig in rigs) == 1


def test_the_floor_of_a_class_holds_for_the_others_of_every_process(rigs):
    one, other, _ = rigs
    short = 2_000  # an eighth of a second: more than half of the headroom, less than all of it
    assert isinstance(one.ask("first", Claim(CHAT), short), Ticket)
    assert isinstance(other.ask("batch", Claim(BATCH), short), Waits)
    assert isinstance(other.ask("hasty", Claim(CHAT), short), Waits), "it does not pass its own process's queue"
    assert other.turn() == ["hasty"]


def test_gateways_that_have_not_heard_of_each_other_admit_one_headroom_each():
    """Between two exchanges, replicas admit as if they were alone: at most what each of them would admit."""
    alone = [AdmissionRig((CHAT, BATCH)) for _ in range(PROCESSES)]
    placed = [rig.ask(f"{number}", Claim(BATCH), LONG) for number in range(4) for rig in alone]
    assert sum(isinstance(one, Ticket) for one in placed) == PROCESSES
