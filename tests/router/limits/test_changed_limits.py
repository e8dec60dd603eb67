import math

import msgspec

from router.config.model import LimitsConfig
from router.errors import RequestError
from router.limits.caller import Charge
from router.limits.registry import RateLimits
from router.limits.table import RateTable, table_bytes

NOW_S = 1_000.0


def config(**default):
    return msgspec.convert({"tenants": {"default": default}} if default else {}, LimitsConfig)


def passed(limits, count, now_s=NOW_S):
    caller = limits.of(None, None)
    return sum(isinstance(caller.admit(0, now_s), Charge) for _ in range(count))


def test_a_limit_that_stays_keeps_its_fill():
    limits = RateLimits(config(requests_per_minute=60))
    assert passed(limits, 50) == 50
    limits.adopt(msgspec.convert({"tenants": {"default": {"requests_per_minute": 60}, "x": {}}}, LimitsConfig))
    assert passed(limits, 99) == 10


def test_a_lower_limit_counts_at_the_next_request():
    limits = RateLimits(config(requests_per_minute=60))
    limits.of(None, None).admit(0, NOW_S)
    limits.adopt(config(requests_per_minute=6))
    assert passed(limits, 99) == 6
    refused = limits.of(None, None).admit(0, NOW_S)
    assert isinstance(refused, RequestError) and refused.retry_after_s == 10.0


def test_a_higher_limit_fills_the_bucket_faster_from_where_it_is():
    limits = RateLimits(config(requests_per_minute=6))
    assert passed(limits, 9) == 6
    limits.adopt(config(requests_per_minute=600))
    assert passed(limits, 9, NOW_S) == 0
    assert passed(limits, 99, NOW_S + 1.0) == 10


def test_a_limit_that_is_removed_and_set_again_begins_full():
    limits = RateLimits(config(requests_per_minute=6, max_concurrent_requests=50))
    assert passed(limits, 9) == 6
    limits.adopt(config(max_concurrent_requests=50))
    assert passed(limits, 9) == 9, "no time has passed, and there is no limit per minute"
    limits.adopt(config(requests_per_minute=6, max_concurrent_requests=50))
    assert passed(limits, 9) == 6


def test_requests_in_progress_count_under_the_next_limits():
    limits = RateLimits(config(max_concurrent_requests=3))
    running = [limits.of(None, None).admit(0, NOW_S) for _ in range(3)]
    limits.adopt(config())
    assert limits.of(None, None) is None
    limits.adopt(config(max_concurrent_requests=4))
    assert passed(limits, 9) == 1
    for charge in running:
        charge.settle(0, NOW_S, served=True)
    assert passed(limits, 9) == 3
    (account,) = limits.statistics([], NOW_S)
    assert (account["running"], account["admitted"]) == (4, 7)


def test_a_charge_is_settled_under_the_new_limits():
    limits = RateLimits(config(tokens_per_minute=6_000))
    charge = limits.of(None, None).admit(5_000, NOW_S)
    limits.adopt(config(tokens_per_minute=600))
    caller = limits.of(None, None)
    charge.settle(200, NOW_S, served=True)
    assert isinstance(caller.admit(600, NOW_S), Charge)
    assert math.isclose(caller.admit(600, NOW_S).retry_after_s, 60.0)


def test_two_processes_keep_one_fill_while_both_change():
    memory = bytearray(table_bytes(2))
    before, after = config(requests_per_minute=60), config(requests_per_minute=60, tokens_per_minute=9_000)
    one, other = (RateLimits(before, RateTable(memory, processes=2, process=number)) for number in range(2))
    assert passed(one, 20) + passed(other, 20) == 40
    one.adopt(after)
    other.adopt(after)
    assert passed(one, 15) + passed(other, 15) == 20
    assert isinstance(one.of(None, None).admit(9_000, NOW_S + 1.0), Charge)
    assert isinstance(other.of(None, None).admit(9_000, NOW_S + 1.0), RequestError)
