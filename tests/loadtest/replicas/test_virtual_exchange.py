"""Replicas in virtual time hear each other through the real messages."""

from loadtest.replicas.virtual_exchange import WAY_S, VirtualExchange
from loadtest.sim.virtual_time import VirtualTime
from policies.view import WorkerId
from router.placement.ledger import LoadAccount
from router.placement.running import LoadReservation
from router.replicas.fleet_channel import TICK_S
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap


def accounts(exchange):
    """One account of the same worker in each replica."""
    made = []
    for replica in exchange.replicas:
        account = LoadAccount()
        account.shared = replica.ledger.account("10.0.0.1:8000")
        made.append(account)
    return made


def test_load_arrives_at_the_others_with_the_next_message():
    time = VirtualTime()
    with VirtualExchange(time, [ResidencyMap() for _ in range(3)], lambda: time.now_s < 0.5) as exchange:
        one, two, three = accounts(exchange)
        time.run(0.1)
        one.reserve(LoadReservation(500, 2_000, time.now_s))
        assert two.shared.others().running_requests == 0
        time.run(0.1 + TICK_S + WAY_S)
        assert two.shared.others().running_requests == three.shared.others().running_requests == 1
        assert two.shared.others().queued_tokens == 500
        assert one.shared.others().running_requests == 0
        two.reserve(LoadReservation(500, 2_000, time.now_s))
        time.run()
        assert three.shared.others().running_requests == 2
        assert exchange.statistics()["malformed"] == 0
        assert exchange.messages > 10 and exchange.sent_bytes > 0


def test_the_exchange_ends_with_the_run():
    time = VirtualTime()
    with VirtualExchange(time, [ResidencyMap() for _ in range(2)], lambda: time.now_s < 1.0) as exchange:
        accounts(exchange)
        time.run()
        assert 1.0 <= time.now_s < 1.0 + 2 * TICK_S
        assert time.pending == 0


def test_what_one_places_on_a_modelled_worker_the_others_find_there():
    time = VirtualTime()
    residencies = [ResidencyMap() for _ in range(2)]
    for residency in residencies:
        residency.add(0, WorkerId("10.0.0.1:8000"), 16, 1_000, events=False)
    prompt = Prompt(64, PromptSource.IDS, lambda size: [11, 12, 13, 14])
    with VirtualExchange(time, residencies, lambda: time.now_s < 0.5) as exchange:
        time.run(0.1)
        residencies[0].reserve(0, prompt, ticket_id=1)
        assert residencies[1].match(prompt, [0])[0].tokens == 0
        time.run()
        assert residencies[1].match(prompt, [0])[0].tokens == 48  # the last block is computed again
        statistics = exchange.statistics()
    assert (statistics["placements"], statistics["unplaced"], statistics["malformed"]) == (1, 0, 0)
