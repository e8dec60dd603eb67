"""Further policies and routes of a process: built with its seeds and shares, and changed while it runs."""

import msgspec
import pytest

from router.app import GatewayProcess
from router.config.model import Config, PolicyConfig, RouteConfig
from router.config.problems import ConfigError
from router.control.change import Change
from router.control.state.edits import remove_named_policy, set_named_policy, set_policy, set_routes
from router.control.state.routing import ProcessShare, routing_of
from router.requests.layers.route_queue.layer import RouteQueues

ROUTES = [
    {"name": "eval", "match": {"header": {"x-team": "eval"}}, "policy": "batch", "max_requests": 5},
    {"name": "rest", "shadow": ["default"]},
]
SETTINGS = {"host": "127.0.0.1", "port": 0, "admin_port": 0, "policies": {"batch": {"rule": "lpwl"}}, "routes": ROUTES}


@pytest.fixture
async def system():
    system = GatewayProcess(msgspec.convert(SETTINGS, Config))
    await system.start()
    yield system
    await system.aclose()


async def make(system, edit):
    return await system.control.make(Change(edit, "a test"))


def parts(system):
    return system.gateway._parts


def test_processes_have_their_own_seeds_and_share_the_limits():
    route = RouteConfig(name="eval", max_requests=5, max_queued_requests=3, queue_s=1.0)
    shares = [ProcessShare(process, 2) for process in (0, 1)]
    assert [share.routes([route])[0].max_requests for share in shares] == [3, 2]
    assert [share.routes([route])[0].max_queued_requests for share in shares] == [2, 2]
    assert [share.seeded(PolicyConfig(seed=7)).seed for share in shares] == [7, 8]
    one = RouteConfig(name="eval", max_requests=1)
    assert [share.routes([one])[0].max_requests for share in shares] == [1, 1]


def test_the_default_policy_belongs_to_the_routing_only_while_a_route_shadows_it():
    config = msgspec.convert(SETTINGS, Config)
    assert routing_of(config).shadowed == config.policy
    assert routing_of(msgspec.structs.replace(config, routes=())).shadowed is None


def queues(system):
    (found,) = (feature for feature in parts(system).features.all if isinstance(feature, RouteQueues))
    return found._queues


async def test_routes_change_while_the_gateway_runs(system):
    assert [route.name for route in parts(system).identifier.routes.all] == ["eval", "rest"]
    queue = queues(system).get("eval")
    limited = RouteConfig(name="eval", max_requests=2)
    await make(system, set_routes((limited,)))
    assert [route.name for route in parts(system).identifier.routes.all] == ["eval"]
    assert queues(system).get("eval") is queue
    assert queue._limit == 2
    assert system.core.policies.shadows_of("rest") is None
    await make(system, set_routes(()))
    assert parts(system).identifier.routes.only.name == "default"
    assert queues(system).get("eval") is None


async def test_a_policy_that_stays_keeps_its_state(system):
    named = system.core.policies
    batch = named.of("batch")
    await make(system, set_named_policy("chat", PolicyConfig(rule="random")))
    assert named.of("batch") is batch
    assert named.of("chat").rule == "random"
    await make(system, set_named_policy("batch", PolicyConfig(rule="round_robin")))
    assert named.of("batch").rule == "round_robin"
    assert named.of("chat") is not batch


async def test_a_shadow_of_the_default_policy_follows_it(system):
    def shadowed():
        return system.core.policies.shadows_of("rest")._runners[0].rule

    assert shadowed() == "marginal_cost"
    await make(system, set_policy(PolicyConfig(rule="lmetric")))
    assert shadowed() == "lmetric"


async def test_a_policy_that_a_route_names_cannot_be_removed(system):
    with pytest.raises(ConfigError, match="no policy is called batch"):
        await make(system, remove_named_policy("batch"))
    assert system.core.policies.of("batch").rule == "lpwl"
    await make(system, set_routes(()))
    await make(system, remove_named_policy("batch"))
    assert system.core.policies.of("batch") is system.core.policies.default
