"""Classes of several processes: each has a queue of its own, and all see the load that each reserves."""

import os

import pytest

from router.placement.admission.admission import Waits
from router.placement.admission.classes import Claim, RequestClass
from router.placement.tickets import Ticket
from router.process.shared_memory.ledger import Ledger, make_table
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas.fleet_channel import FleetChannel
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


@pytest.fixture
def replicas():
    """The queues of three replicas over the same worker, and a call that exchanges their loads at a time."""
    shared = [ReplicaLedger() for _ in range(PROCESSES)]
    channels = [FleetChannel(f"gateway-{number}", 0, 1.0, one.rows) for number, one in enumerate(shared)]
    rigs = [AdmissionRig((CHAT, BATCH), preempts=True, ledger=one.ledger) for one in shared]

    def exchange(at_s):
        for rig in rigs:
            rig.now_s = at_s
        for sender in channels:
            if (message := sender.take(at_s)) is not None:
                for receiver in channels:
                    if receiver is not sender:
                        receiver.receive(message, at_s)

    for rig in rigs:
        rig.core.loads.of(rig.fleet.candidates[0])  # all know the worker
    exchange(1.0)
    yield rigs, exchange
    for one in shared:
        one.close()


def test_replicas_admit_one_headroom_each_until_an_exchange_and_together_one_after_it(replicas):
    rigs, exchange = replicas
    before = [rig.ask(f"before-{number}", Claim(BATCH), LONG) for number in range(3) for rig in rigs]
    assert sum(isinstance(one, Ticket) for one in before) == PROCESSES
    exchange(1.02)
    assert [rig.turn() for rig in rigs] == [[], [], []]
    sent = []
    for number, rig in enumerate(rigs):
        rig.end(next(iter(rig.tickets)))
        for other in rigs:
            exchange(1.1 + 0.1 * number + 0.02 * len(sent))
            sent += other.turn()
        assert len(sent) == (number == PROCESSES - 1), "while requests of other gateways are there, nobody has room"


def test_a_request_gives_way_only_at_its_own_gateway(replicas):
    (one, other, _), exchange = replicas
    assert isinstance(one.ask("batch", Claim(BATCH), LONG), Ticket)
    exchange(1.02)
    assert isinstance(other.ask("chat", Claim(CHAT), LONG), Waits)
    assert (other.turn(), one.asked_to_leave) == ([], [])
    assert isinstance(one.ask("chat", Claim(CHAT), LONG), Ticket)
    assert one.asked_to_leave == ["batch"]
