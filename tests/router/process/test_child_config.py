import asyncio
import socket

import pytest

from router.config.model import (
    Config,
    LimitsConfig,
    PolicyConfig,
    RouteConfig,
    TenantConfig,
    WorkerConfig,
)
from router.control.state.desired_state import DesiredState, LiveSettings, live_settings
from router.process.children import child_config as module
from router.process.children.child_config import (
    ChildConfig,
    config_of,
    count_of,
    receive_config,
    send_config,
    share_of,
)
from router.process.settings import check
from router.security.tenancy import quotas_of


def test_auto_is_a_process_per_core(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 6)
    assert count_of(Config(processes="auto")) == 6
    assert count_of(Config(processes=3)) == 3
    assert count_of(Config()) == 1
    monkeypatch.undo()
    assert count_of(Config(processes="auto")) >= 1


def test_limits_are_divided_and_one_body_always_fits():
    limits = LimitsConfig(
        max_connections=10,
        max_queued_requests=1,
        max_buffered_body_bytes=100,
        max_body_bytes=60,
    )
    share = share_of(limits, 0, 3)
    assert (share.max_connections, share.max_queued_requests) == (4, 1)
    assert share.max_buffered_body_bytes == 60
    assert share.max_body_bytes == 60


def test_a_request_limit_is_divided_without_a_rest():
    limits = LimitsConfig(max_concurrent_requests=5)
    assert [share_of(limits, number, 3).max_concurrent_requests for number in range(3)] == [2, 2, 1]
    assert share_of(LimitsConfig(), 0, 3).max_concurrent_requests == 0


def test_tenant_quotas_are_divided():
    tenants = {"red": TenantConfig(max_queued_requests=4, max_buffered_body_bytes=90), "blue": TenantConfig()}
    share = quotas_of(tenants, 3, 60)
    assert (share["red"].max_queued_requests, share["red"].max_buffered_body_bytes) == (2, 60)
    assert (share["blue"].max_queued_requests, share["blue"].max_buffered_body_bytes) == (None, None)
    small = {"red": TenantConfig(max_buffered_body_bytes=50)}
    assert quotas_of(small, 3, 60)["red"].max_buffered_body_bytes == 50


async def test_a_configuration_arrives_as_it_was_sent():
    config = Config(workers=(WorkerConfig(url="http://a:1", api_key="k"),), processes="auto")
    state = DesiredState(version=3, lineage="a", settings=live_settings(config))
    sent = ChildConfig(1, 2, config, state, (5, 6), 7, 8, "/run/events.sock")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        received, _ = await asyncio.gather(asyncio.to_thread(receive_config, theirs), send_config(ours, sent))
        assert received == sent
        ours.close()
        with pytest.raises(EOFError):
            receive_config(theirs)


def test_a_limit_that_the_processes_cannot_share_out_is_a_mistake():
    route = RouteConfig(name="eval", max_requests=1)
    (found,) = check(Config(routes=(route,), processes=2))
    assert found[0] == ("routes", 0, "limits", "max_requests")


def test_a_child_starts_with_the_desired_state_and_its_share_of_the_limits():
    config = Config(workers=(WorkerConfig(url="http://a:1"),), limits=LimitsConfig(max_connections=10))
    worker = WorkerConfig(url="http://c:1", api_key="k", maintenance=True)
    settings = LiveSettings(workers={"c:1": worker}, policy=PolicyConfig(rule="lpwl", seed=4))
    started = config_of(config, DesiredState(version=2, lineage="a", settings=settings), 1, 2)
    assert started.workers == (worker,)
    assert (started.policy, started.limits.max_connections) == (settings.policy, 5)
