from loadtest.replicas.bars import bars
from loadtest.replicas.cases import Case, Played, Share
from loadtest.replicas.exchange import Cost
from loadtest.replicas.faults import Healing
from loadtest.replicas.findings import Findings


def played(gateways, events, redis, cached, imbalance=1.2):
    return Played(Case(gateways, events, redis), (Share(cached, imbalance, 20.0, 100),))


def found(findings):
    return {(bar.what, bar.where): bar.met for bar in bars(findings)}


def test_exact_views_are_judged_without_redis_and_approximate_ones_with_it():
    live = [
        played(1, True, False, 0.80),
        played(2, True, False, 0.77),
        played(2, True, True, 0.80, imbalance=1.30),
        played(1, False, False, 0.80),
        played(2, False, False, 0.60),
        played(2, False, True, 0.76, imbalance=1.40),
    ]
    assert found(Findings(live=live)) == {
        ("cached share lost, exact views without Redis", "live: 2 gateways"): False,
        ("cached share lost, approximate views over Redis", "live: 2 gateways"): True,
        ("busiest worker over the mean, over that of one gateway, exact views over Redis", "live: 2 gateways"): True,
        ("busiest worker over the mean, over that of one gateway, approximate views over Redis", "live: 2 gateways"): (
            False
        ),
    }


def test_a_higher_share_than_that_of_one_gateway_is_no_loss():
    sim = {"one": [played(1, True, False, 0.80), played(4, True, False, 0.95)]}
    assert list(found(Findings(sim=sim)).values()) == [True]


def test_the_exchange_is_judged_by_cpu_and_by_what_arrived():
    cost = Cost(0, 0.05, (0.05, 0.09), (0.01, 0.01), 0.5, 2_000, 400, 0, 3, 1.0)
    assert list(found(Findings(exchange=[cost])).values()) == [True, False, False]


def test_a_failed_request_and_a_slow_healing_miss_their_bars():
    faults = [Healing("stopped", 100, ("broken",), 2, 5.5, 14.0)]
    assert list(found(Findings(faults=faults)).values()) == [False, False, True]
