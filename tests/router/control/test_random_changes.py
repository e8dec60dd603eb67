import asyncio

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.config.model import (
    AuthConfig,
    Config,
    KvEventsConfig,
    LimitsConfig,
    ModelConfig,
    PolicyConfig,
    RateLimitsConfig,
    RouteConfig,
    RouteMatch,
    SloConfig,
    TenantConfig,
)
from router.config.problems import ConfigError
from router.control.change import Change
from router.control.start import settings_problems
from router.control.state.desired_state import from_tree, live_settings, tree_of
from router.control.state.differences import differences
from router.control.state.edits import (
    WorkerKnownError,
    add_worker,
    change_worker,
    remove_named_policy,
    remove_worker,
    set_maintenance,
    set_named_policy,
    set_policy,
    set_routes,
)
from router.control.state.merge import api_changes, merge, reloaded
from router.control.state.named_settings import KEY_LIMITS, MODELS, TENANT_LIMITS, TENANTS, NameUnknownError
from router.control.state_file import decode, encode
from tests.router.control.conftest import Fleet, worker

PORTS = st.integers(1, 5)
LABELS = st.dictionaries(st.sampled_from(["lane", "rack", "a.b"]), st.sampled_from(["prefill", "decode"]), max_size=2)
WORKERS = st.builds(
    worker,
    PORTS,
    labels=LABELS,
    api_key=st.sampled_from([None, "k1", "k2"]),
    maintenance=st.booleans(),
    kv_events=st.sampled_from([None, KvEventsConfig(endpoint="tcp://a:5557")]),
)
POLICIES = st.one_of(
    st.builds(
        PolicyConfig,
        rule=st.sampled_from(["lpwl", "random", "round_robin", "marginal_cost"]),
        hold=st.sampled_from([None, True, False, {"max_s": 5.0}]),
        lanes=st.sampled_from([None, True, {"stream_weight": 0.2}]),
    ),
    st.builds(lambda bound: PolicyConfig(rule="chwbl", params={"load_factor": bound}), st.floats(1.1, 3.0)),
)
NAMES = st.sampled_from(["chat", "batch"])
ROUTES = st.builds(
    lambda policy, split, limit, shadow: (
        RouteConfig(name="long", match=RouteMatch(prompt_tokens=">9"), policy=policy, max_requests=limit),
        RouteConfig(name="rest", split=split, shadow=shadow),
    ),
    st.sampled_from([None, "default", "chat", "batch"]),
    st.sampled_from([{}, {"default": 1, "batch": 9}]),
    st.integers(0, 3),
    st.sampled_from([(), ("lpwl",), ("default", "chat")]),
)
MODEL_NAMES = st.sampled_from(["big", "org/small"])
MODEL = st.builds(
    ModelConfig,
    slo=st.builds(SloConfig, ttft=st.sampled_from([None, 1.0, 2.0])),
    aliases=st.sampled_from([(), ("chat",), ("chat", "fast"), ("big",)]),
    fallback=st.sampled_from([None, "big", "org/small", "tiny"]),
    default=st.booleans(),
)
MODELS_OF = st.dictionaries(MODEL_NAMES, MODEL, max_size=2)
TENANT_NAMES = st.sampled_from(["red", "blue"])
TENANT = st.builds(
    TenantConfig,
    keys=st.sampled_from([("a",), ("b",), ("a", "b"), ("z",), ()]),
    max_queued_requests=st.sampled_from([None, 0, 7]),
    trusted=st.booleans(),
)
LIMIT = st.builds(
    RateLimitsConfig,
    requests_per_minute=st.sampled_from([0, 60]),
    tokens_per_minute=st.sampled_from([0, 9_000]),
    burst_requests=st.sampled_from([None, 5]),
)
LIMITED_TENANTS = st.sampled_from(["default", "red", "blue"])
LIMITED_KEYS = st.sampled_from(["a", "b", "z"])
AUTH = AuthConfig(api_keys=tuple(f"{name} sha256:{number:064x}" for number, name in enumerate("ab")))
PATCHED_WORKER = st.sampled_from([{"weight": 0.5}, {"weight": None}, {"labels": {"rack": "7"}}, {"labels": None}])
EDITS = st.one_of(
    st.builds(lambda port, patch: change_worker(f"a:{port}", patch), PORTS, PATCHED_WORKER),
    st.builds(MODELS.change, MODEL_NAMES, st.sampled_from([{"slo": {"ttft": 1.0}}, {"slo": None}, {"aliases": None}])),
    st.builds(TENANTS.change, TENANT_NAMES, st.sampled_from([{"trusted": True}, {"trusted": None}, {"keys": ["a"]}])),
    st.builds(KEY_LIMITS.change, LIMITED_KEYS, st.sampled_from([{"requests_per_minute": 9}, {"burst_requests": None}])),
    st.builds(TENANTS.change, TENANT_NAMES, TENANT.map(msgspec.to_builtins)),
    st.builds(TENANTS.remove, TENANT_NAMES),
    st.builds(TENANT_LIMITS.change, LIMITED_TENANTS, LIMIT.map(msgspec.to_builtins)),
    st.builds(TENANT_LIMITS.remove, LIMITED_TENANTS),
    st.builds(TENANT_LIMITS.set_all, st.dictionaries(LIMITED_TENANTS, LIMIT, max_size=2)),
    st.builds(KEY_LIMITS.change, LIMITED_KEYS, LIMIT.map(msgspec.to_builtins)),
    st.builds(KEY_LIMITS.remove, LIMITED_KEYS),
    st.builds(MODELS.change, MODEL_NAMES, MODEL.map(msgspec.to_builtins)),
    st.builds(MODELS.remove, MODEL_NAMES),
    st.builds(set_named_policy, NAMES, POLICIES),
    st.builds(remove_named_policy, NAMES),
    st.builds(set_routes, st.one_of(st.just(()), ROUTES)),
    st.builds(add_worker, WORKERS),
    st.builds(lambda port: remove_worker(f"a:{port}"), PORTS),
    st.builds(lambda port, on: set_maintenance(f"a:{port}", on), PORTS, st.booleans()),
    st.builds(set_policy, POLICIES),
)
FILES = st.builds(
    lambda workers, policy, models, tenants, limits, keys: Config(
        workers=tuple({each.url: each for each in workers}.values()),
        policy=policy,
        models=models,
        auth=AUTH,
        tenants=tenants,
        limits=LimitsConfig(tenants=limits, keys=keys),
    ),
    st.lists(WORKERS, max_size=4),
    POLICIES,
    MODELS_OF,
    st.dictionaries(TENANT_NAMES, TENANT, max_size=2),
    st.dictionaries(LIMITED_TENANTS, LIMIT, max_size=1),
    st.dictionaries(st.sampled_from("ab"), LIMIT, max_size=1),
).map(lambda config: config if not settings_problems(config, live_settings(config)) else Config(auth=AUTH))
STEPS = st.lists(st.one_of(EDITS, EDITS, EDITS, FILES), min_size=40, max_size=60)


class KeptInMemory:
    def save(self, stored):
        self.text = encode(stored)


@pytest.mark.timeout(300)
@settings(suppress_health_check=list(HealthCheck))
@given(FILES, STEPS)
def test_processes_and_file_agree_after_each_change(first, steps):
    asyncio.run(_agree_after_each(first, steps))


async def _agree_after_each(first, steps):
    kept = KeptInMemory()
    fleet = Fleet(first, processes=2, store=kept)
    states = {1: fleet.control.state.settings}
    for step in steps:
        try:
            await (_reload(fleet, step) if isinstance(step, Config) else fleet.control.make(Change(step, "random")))
        except (WorkerKnownError, NameUnknownError):
            continue
        except ConfigError:  # a route names a policy that is not there, a key belongs to two tenants, and so on
            assert fleet.agree()
            continue
        states[fleet.control.state.version] = fleet.control.state.settings
        assert fleet.agree()
        if fleet.control.state.version > 1:
            stored = decode(kept.text).stored
            assert stored.state == fleet.control.state
            assert merge(stored.file, api_changes(stored.file, stored.state.settings)) == fleet.control.state.settings
    for revision in fleet.control.history.revisions:
        assert fleet.control.history.settings_at(revision.number, fleet.control.state) == states[revision.number]


async def _reload(fleet, config):
    fleet.read = config
    await fleet.control.reload()


@given(FILES, FILES)
def test_a_reload_without_changes_by_the_api_gives_the_file(before, after):
    merged = reloaded(live_settings(before), live_settings(before), live_settings(after))
    assert (merged.settings, merged.conflicts) == (live_settings(after), ())


@given(FILES, FILES)
def test_settings_survive_their_tree(one, other):
    tree = tree_of(live_settings(one))
    assert from_tree(tree) == live_settings(one)
    assert (differences(tree, tree_of(live_settings(other))) == ()) is (live_settings(one) == live_settings(other))
