"""Replicas in virtual time hear each other through the real messages."""

from loadtest.replicas.virtual_exchange import WAY_S, VirtualExchange
from loadtest.sim.virtual_time import VirtualTime
from router.placement.ledger import LoadAccount
from router.placement.running import LoadReservation
from router.replicas.line import TICK_S


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
    with VirtualExchange(time, 3, lambda: time.now_s < 0.5) as exchange:
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
        assert exchange.statistics() == {"messages": exchange.messages, "malformed": 0}
        assert exchange.messages > 10 and exchange.sent_bytes > 0


def test_the_exchange_ends_with_the_run():
    time = VirtualTime()
    with VirtualExchange(time, 2, lambda: time.now_s < 1.0) as exchange:
        accounts(exchange)
        time.run()
        assert 1.0 <= time.now_s < 1.0 + 2 * TICK_S
        assert time.pending == 0
