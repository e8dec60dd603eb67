import random
import re
import types
from pathlib import Path

from policies.view import FleetView, RequestView, Residency, WorkerId, WorkerView

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-policy.md"


def example():
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    module = types.ModuleType("sharded")
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    return module, code


def worker(name, queued, cached):
    return WorkerView(
        id=WorkerId(name),
        residency=Residency.EXACT,
        cached_tokens=cached,
        uncached_tokens=100 - cached,
        queued_tokens=queued,
        running_requests=0,
        kv_tokens=0,
        kv_capacity_tokens=1000,
        queue_wait_s=0.0,
        prefill_s=0.0,
        utilisation=0.0,
    )


def test_the_example_ranks_everyone_and_prefers_least_uncached_work():
    module, code = example()
    body = code.partition("class Sharded:")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10
    policy = module.Sharded(module.ShardedParams(shards=1), random.Random(0))
    fleet = FleetView(0.0, (worker("a:1", 50, 0), worker("b:1", 0, 50), worker("c:1", 0, 0)))
    request = RequestView("tenant-1", "m", 100, 16, ())
    decision = policy.decide(request, fleet)
    assert decision.ranked == ("b:1", "c:1", "a:1")
    assert decision.terms["a:1"] == {"work": 150.0}
    halves = module.Sharded(module.ShardedParams(shards=2), random.Random(0))
    assert halves.decide(request, fleet).ranked in (("c:1", "a:1", "b:1"), ("b:1", "c:1", "a:1"))


def test_the_example_loads_through_the_registry(monkeypatch):
    from importlib.metadata import EntryPoint

    import policies.registry as registry
    from policies.spec import PolicySpec

    module, _ = example()
    monkeypatch.setitem(__import__("sys").modules, "sharded", module)
    point = EntryPoint("sharded", "sharded:Sharded", "warmroute.policies")
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [point])
    policy = registry.build_policy(PolicySpec("sharded", {"shards": 3}), random.Random(0))
    assert isinstance(policy, module.Sharded)
    assert "sharded" in registry.policy_names()
