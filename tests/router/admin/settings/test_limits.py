import msgspec

from router.config.model import LimitsConfig
from router.limits.registry import RateLimits


async def test_every_account_is_shown_with_what_it_has_left(client, system):
    limits = {
        "tenants": {"red": {"requests_per_minute": 60, "tokens_per_minute": 600, "burst_tokens": 100}},
        "keys": {"nightly": {"max_concurrent_requests": 4}},
    }
    made = RateLimits(msgspec.convert(limits, LimitsConfig))
    made.of("nightly", "red").admit(130, 5.0)
    made.of("nightly", "red").admit(90, 5.0)
    system.limits = lambda: made.statistics([], 5.0)
    nightly = {"account": "key:nightly", "running_requests": 1, "max_concurrent_requests": 4}
    red = {"account": "tenant:red", "running_requests": 1, "max_concurrent_requests": None}
    requests = {"per_minute": 60, "burst": 60, "remaining": 59.0, "full_s": 1.0}
    tokens = {"per_minute": 600, "burst": 100, "remaining": 10.0, "full_s": 9.0}
    assert (await client.get("/admin/v1/limits")).json() == {
        "accounts": [nightly | {"requests": None, "tokens": None}, red | {"requests": requests, "tokens": tokens}]
    }
    system.limits = lambda: RateLimits(LimitsConfig()).statistics([("a", "red")], 5.0)
    assert (await client.get("/admin/v1/limits")).json() == {"accounts": []}
