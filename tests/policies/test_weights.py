import random
from collections import Counter, deque

import pytest

from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import LifecycleEvent, LifecycleEventKind
from policies.weights import shuffled, weighted
from router.placement.policies.policy_runner import PolicyRunner


@pytest.fixture
def share(view, fleet, form, request_view):
    """Return the share of each worker of 1,200 requests by a rule, with `running` requests in progress at a time.

    A stream takes equally long everywhere: the one that began first ends first.
    """

    def run(rule, weights, running=0, blocks=lambda number: ()):
        spec = PolicySpec(rule)
        runner = PolicyRunner(build_policy(spec, random.Random(1)), spec)
        began, found = deque(), Counter()
        for number in range(1_200):
            load = Counter(began)
            candidates = {
                name: {
                    "weight": weight,
                    "running_requests": load[name],
                    "kv_tokens": 100 * load[name],
                    "prefill_s": 0.1,
                    "decode_externality_s": 0.05 * load[name],
                    "learned": True,
                }
                for name, weight in weights.items()
            }
            seen = form(fleet(**candidates))
            request = request_view(blocks=blocks(number), name=str(number), session_id=str(number))
            chosen = runner.decide(request, seen).ranked[0]
            placed = seen.worker(seen.row_of(chosen))
            runner.observe(LifecycleEvent(LifecycleEventKind.RESERVED, request, chosen, 0.0, placed=placed, fleet=seen))
            began.append(chosen)
            if len(began) > running:
                began.popleft()
            found[chosen] += 1
        return {name: found[name] / 1_200 for name in weights}

    return run


@pytest.mark.parametrize("rule", ["round_robin", "least_requests", "marginal_cost", "lpwl", "random"])
def test_an_idle_worker_of_half_the_weight_gets_half_as_many_requests(share, rule):
    found = share(rule, {"a": 1.0, "b": 0.5})
    assert found["b"] / found["a"] == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("rule", ["least_requests", "marginal_cost", "power_of_two", "session_affinity"])
def test_a_busy_worker_of_half_the_weight_gets_half_as_many_requests(share, rule):
    found = share(rule, {"a": 1.0, "b": 0.5, "c": 1.0}, running=60)
    assert found["b"] / found["a"] == pytest.approx(0.5, abs=0.12)


def test_turns_follow_any_weights(share):
    found = share("round_robin", {"a": 2.0, "b": 1.0, "c": 1.0, "d": 4.0})
    assert found == pytest.approx({"a": 0.25, "b": 0.125, "c": 0.125, "d": 0.5}, abs=0.002)


def test_weights_matter_in_relation_only(share):
    assert share("least_requests", {"a": 2.0, "b": 1.0}, 9) == share("least_requests", {"a": 1.0, "b": 0.5}, 9)


@pytest.mark.parametrize("rule", ["chwbl", "dualmap"])
def test_a_worker_of_half_the_weight_owns_half_as_many_prefixes(share, rule):
    found = share(rule, {"a": 1.0, "b": 0.5, "c": 1.0}, blocks=lambda number: (random.Random(number).getrandbits(64),))
    assert found["b"] / found["a"] == pytest.approx(0.5, abs=0.12)


def test_equal_weights_change_nothing(fleet, form):
    seen = form(fleet(a={"weight": 3.0, "running_requests": 2}, b={"weight": 3.0}))
    assert weighted(seen) is seen


def test_a_policy_sees_load_by_weight_and_caches_as_they_are(fleet, form):
    load = {"queued_tokens": 100, "running_requests": 4, "queued_requests": 1, "kv_tokens": 1_000, "prefill_s": 0.3}
    load |= {"cached_tokens": 64, "idle_tokens": 7, "queue_wait_s": 0.2, "utilisation": 0.4, "kv_wait_s": 0.6}
    load |= {"kv_capacity_tokens": 5_000}
    light, heavy = weighted(form(fleet(a={**load, "weight": 0.5}, b={**load, "weight": 1.0}))).workers
    assert (light.queued_tokens, light.running_requests, light.queued_requests) == (200, 8, 2)
    assert (light.queue_wait_s, light.utilisation, light.kv_tokens) == (0.4, 0.8, 2_000)
    assert light.kv_capacity_tokens - light.kv_tokens == heavy.kv_capacity_tokens - heavy.kv_tokens == 4_000
    same = ("cached_tokens", "uncached_tokens", "idle_tokens", "prefill_s", "kv_wait_s")
    assert [getattr(light, name) for name in same] == [getattr(heavy, name) for name in same]
    assert heavy.running_requests == 4


def test_the_fixed_delay_of_an_idle_worker_is_no_load(fleet, form):
    seen = weighted(form(fleet(a={"weight": 0.5, "queue_wait_s": 0.002}, b={"queue_wait_s": 0.002})))
    assert [view.queue_wait_s for view in seen.workers] == [0.002, 0.002]


def test_a_cache_of_unknown_size_stays_unknown(fleet, form):
    seen = weighted(form(fleet(a={"weight": 0.5, "kv_tokens": 9, "kv_capacity_tokens": 0}, b={})))
    assert seen.workers[0].kv_capacity_tokens == 0


def test_a_draw_names_each_worker_once(fleet):
    order = shuffled(fleet(a={"weight": 0.5}, b={}, c={"weight": 100.0}), random.Random(5))
    assert sorted(order) == [0, 1, 2]
