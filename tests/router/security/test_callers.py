import msgspec
import pytest

from router.config.model import AuthConfig, Config, LimitsConfig, TenantConfig
from router.errors import ErrorKind, RequestError
from router.security import callers as module
from router.security.callers import Callers, TenantUsage

AUTH = AuthConfig(api_keys=("alice sha256:" + "0" * 64,))


def callers(auth=AUTH, **tenants):
    return Callers(Config(auth=auth, tenants=tenants))


def test_keys_of_a_tenant_share_its_usage():
    known = callers(red=TenantConfig(keys=("a", "b")), blue=TenantConfig(keys=("c",)))
    assert known.of("a") is known.of("a")
    assert known.of("a").account is known.of("b").account
    assert known.of("a").account is not known.of("c").account
    assert known.of("d").account is None
    assert known.anybody.account is None
    assert known.anybody.salts is None


def test_the_number_of_kept_callers_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "CALLERS_KEPT", 4)
    known = callers(red=TenantConfig(keys=("a",)))
    account = known.of("a").account
    for number in range(9):
        known.of(f"key-{number}")
    assert len(known._callers) <= 4
    assert known.of("a").account is account


def test_privileged_fields_are_withheld_by_default():
    known = callers(red=TenantConfig(keys=("a",)), ours=TenantConfig(keys=("b",), trusted=True))
    assert known.anybody.may == known.of("a").may == known.of("x").may == frozenset()
    assert known.anybody.withheld == {b"x-data-parallel-rank", b"x-vllm-priority", b"x-prefiller-host-port"}
    assert known.of("b").may == {"transfer_params", "priority", "rank"}
    assert known.of("b").withheld == frozenset()
    assert b"content-digest" in known.of("b").withheld_salted


@pytest.mark.parametrize(
    ("allowed", "withheld"),
    [
        ("rank", {b"x-vllm-priority", b"x-prefiller-host-port"}),
        ("priority", {b"x-data-parallel-rank", b"x-prefiller-host-port"}),
        ("transfer_params", {b"x-vllm-priority", b"x-data-parallel-rank"}),
    ],
)
def test_a_setting_allows_privileged_fields_to_all(allowed, withheld):
    known = callers(AuthConfig(allow=(allowed,)))
    assert known.anybody.may == {allowed}
    assert known.anybody.withheld == withheld


def test_a_quota_of_bytes_refuses_more():
    account = TenantUsage("red", TenantConfig(max_buffered_body_bytes=100))
    account.check(100)
    account.body_bytes = 60
    account.check(40)
    with pytest.raises(RequestError, match=r"max_buffered_body_bytes \(100\) of tenant red; try again") as full:
        account.check(41)
    assert full.value.kind is ErrorKind.TENANT_BODY_BYTES
    for size_bytes, arrived_bytes in ((101, 0), (41, 60)):
        with pytest.raises(RequestError, match="larger than") as large:
            account.check(size_bytes, arrived_bytes)
        assert large.value.kind is ErrorKind.BODY_TOO_LARGE
    assert account.statistics()["bodies_refused"] == 3


def test_a_quota_of_waiting_requests_refuses_more():
    account = TenantUsage("red", TenantConfig(max_queued_requests=2))
    account.queued = 1
    assert account.may_queue
    account.queued = 2
    assert not account.may_queue
    refusal = account.refuse_to_queue()
    assert refusal.kind is ErrorKind.TENANT_REQUESTS_QUEUED
    assert "max_queued_requests (2)" in refusal.message
    assert account.statistics()["queued_refused"] == 1


def test_a_tenant_has_no_quota_by_default():
    account = TenantUsage("red", TenantConfig())
    account.queued = account.body_bytes = 10**12
    account.check(10**12)
    assert account.may_queue


def changed(known, tenants, /, **limits):
    known.adopt(tenants, msgspec.convert(limits, LimitsConfig))
    return known


def test_tenants_that_stay_keep_their_use_and_get_new_quotas():
    known = callers(red=TenantConfig(keys=("a",), max_queued_requests=5))
    account = known.of("a").account
    account.queued = 3
    changed(known, {"red": TenantConfig(keys=("a", "b"), max_queued_requests=2)})
    assert known.of("a").account is known.of("b").account is account
    assert not account.may_queue


def test_a_key_moves_to_another_tenant_with_its_trust_and_limits():
    known = callers(red=TenantConfig(keys=("a",)))
    assert (known.of("a").tenant, known.of("a").may, known.of("a").limits) == ("red", frozenset(), None)
    changed(known, {"blue": TenantConfig(keys=("a",), trusted=True)}, tenants={"blue": {"requests_per_minute": 1}})
    assert (known.of("a").tenant, "rank" in known.of("a").may) == ("blue", True)
    assert known.of("a").limits is not None
    assert "red" not in known.statistics()


def test_another_cache_group_salts_prompts_in_another_way():
    auth = AuthConfig(api_keys=AUTH.api_keys, isolate_cache="group")
    known = callers(auth, red=TenantConfig(keys=("a",)), blue=TenantConfig(keys=("b",)))
    assert known.of("a").salts.plain != known.of("b").salts.plain
    changed(known, {name: TenantConfig(keys=(key,), cache_group="g") for name, key in (("red", "a"), ("blue", "b"))})
    assert known.of("a").salts.plain == known.of("b").salts.plain


def test_a_port_without_keys_gets_limits_while_it_is_open():
    known = Callers(Config())
    anybody = known.anybody
    assert anybody.limits is None
    changed(known, {}, tenants={"default": {"requests_per_minute": 1}})
    assert known.anybody is anybody and anybody.limits is not None
    changed(known, {})
    assert anybody.limits is None
