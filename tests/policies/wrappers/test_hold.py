import random
from copy import deepcopy

import pytest
from msgspec.structs import replace

from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import Decision, LifecycleEvent, LifecycleEventKind
from policies.wrappers.hold import AdmissionHold, HoldParams

MODELS_KEPT = 64
BUSY = {"prefill_s": 3.0, "queue_wait_s": 3.5, "queued_requests": 1, "learned": True, "utilisation": 0.5}


@pytest.fixture
def make(view, request_view):
    """An admission hold that has seen prefills of `seen_s` seconds."""

    def build(*seen_s, inner=None, prefills=2.0, kv_space=6.0, max_s=None, **fields):
        params = HoldParams(prefills=prefills, kv_space=kv_space, max_s=max_s)
        admission_hold = AdmissionHold(inner or build_policy(PolicySpec("lpwl"), random.Random(0)), params)
        for seconds in seen_s:
            admission_hold.observe(
                reserved(view("w", prefill_s=seconds, **{"learned": True, **fields}), request_view())
            )
        return admission_hold

    return build


@pytest.fixture
def learn(view, request_view):
    """Have an admission hold see the same prefill `times` times."""

    def seen(admission_hold, prefill_s, times=400, request=None, **fields):
        placed = view("w", prefill_s=prefill_s, learned=True, **fields)
        for _ in range(times):
            admission_hold.observe(reserved(placed, request or request_view()))

    return seen


def hold_s(admission_hold, request, chosen):
    seconds, awaited = admission_hold.hold(request, chosen)
    assert bool(seconds) is bool(awaited)
    return seconds


def reserved(placed, request, kind=LifecycleEventKind.RESERVED):
    return LifecycleEvent(kind, request, placed.id, 0.0, placed=placed)


@pytest.fixture
def busy(view):
    """A worker with 1.5 seconds more than a mean prefill in its queue."""

    def make(**fields):
        return view("w", **{**BUSY, **fields})

    return make


def test_a_long_prompt_waits_for_a_busy_worker(make, busy, request_view):
    admission_hold = make(2.0)
    assert hold_s(admission_hold, request_view(), busy()) == 1.5, (
        "until a usual prefill is ahead, and then it is looked at again"
    )
    assert hold_s(admission_hold, request_view(), busy(queue_wait_s=90.0)) == 6.0, "twice its own prefill at the most"
    assert hold_s(admission_hold, request_view(waited_s=5.5), busy()) == 0.5
    assert hold_s(admission_hold, request_view(), busy(queue_wait_s=2.001)) == 0.005, "less is not worth a decision"


def test_a_hold_must_save_more_than_the_fixed_wait_that_it_causes(make, busy, request_view):
    admission_hold = make(2.0, queue_wait_s=0.4)
    assert hold_s(admission_hold, request_view(), busy(utilisation=0.7)) == 0.0, "0.7 * 1.1 * (3 - 2) / 2 is below 0.4"
    assert hold_s(admission_hold, request_view(), busy(utilisation=0.75)) == pytest.approx(1.1), "3.5 - 0.4 - 2"
    assert hold_s(admission_hold, request_view(), busy(utilisation=0.7, prefill_s=3.1)) == pytest.approx(1.1)
    assert hold_s(admission_hold, request_view(), busy(utilisation=0.7, queue_wait_s=3.6)) == pytest.approx(1.2)
    assert hold_s(admission_hold, request_view(), busy(utilisation=0.0)) == 0.0, "nobody would go first"


def test_the_fixed_wait_is_learned_where_no_prefill_is_ahead(make, busy, learn, request_view):
    admission_hold = make(2.0, queue_wait_s=0.4, queued_requests=3)
    assert hold_s(admission_hold, request_view(), busy()) == 1.5, "the wait was for prefills"
    learn(admission_hold, 2.0, queue_wait_s=0.2)
    assert hold_s(admission_hold, request_view(), busy()) == pytest.approx(1.3)
    arriving = make(2.0, queue_wait_s=0.4, queued_tokens=900)
    assert hold_s(arriving, request_view(), busy()) == 1.5, "the wait was for a prompt whose KV cache arrives"


@pytest.mark.parametrize(
    ("why", "waited_s", "fields"),
    [
        ("nothing is being prefilled there", 0.0, {"queued_requests": 0}),
        ("no more than a usual prefill is ahead", 0.0, {"queue_wait_s": 2.0}),
        ("shorter than the others", 0.0, {"prefill_s": 1.9}),
        ("it has waited enough", 6.0, {}),
        ("all but", 5.996, {}),
        ("speeds are not known", 0.0, {"learned": False}),
    ],
)
def test_other_prompts_are_placed_at_once(make, busy, request_view, why, waited_s, fields):
    assert hold_s(make(2.0), request_view(waited_s=waited_s), busy(**fields)) == 0.0, why


def test_no_prompt_is_held_where_nothing_was_seen(make, busy, request_view):
    assert hold_s(make(), request_view(), busy()) == 0.0
    assert hold_s(make(1.0, learned=False), request_view(), busy()) == 0.0, "not seconds"


@pytest.fixture
def full(view):
    """A worker without prefills, whose cache of 1,000 tokens has 50 fewer free than the prompt needs."""

    def make(**fields):
        values = {
            "kv_tokens": 600,
            "idle_tokens": 150,
            "uncached_tokens": 300,
            "kv_capacity_tokens": 1_000,
            **fields,
        }
        return view("w", **{"prefill_s": 3.0, "learned": True, "running_requests": 4, "utilisation": 0.5, **values})

    return make


def test_a_long_prompt_is_held_until_it_fits_beside_running_and_idle_context(make, full, request_view):
    admission_hold = make(2.0)
    assert hold_s(admission_hold, request_view(), full()) == 0.75, (
        "it is asked for four times in the time of its prefill"
    )
    assert hold_s(admission_hold, request_view(waited_s=17.5), full()) == 0.5, "six times its own prefill at the most"
    assert hold_s(admission_hold, request_view(), full(kv_tokens=0, idle_tokens=701)) == 0.75
    assert hold_s(admission_hold, request_view(waited_s=7.0), full(queued_requests=1, queue_wait_s=90.0)) == 0.75, (
        "it has waited enough for prefills, and not for KV space"
    )
    assert admission_hold.hold(request_view(), full())[1] == "space in its KV cache"
    assert admission_hold.hold(request_view(), full(queued_requests=1, queue_wait_s=90.0))[1] == "prefills"


@pytest.mark.parametrize(
    ("why", "waited_s", "fields"),
    [
        ("it fits", 0.0, {"idle_tokens": 100}),
        (
            "there is nothing that it could wait for",
            0.0,
            {"kv_tokens": 0, "idle_tokens": 0, "uncached_tokens": 2_000},
        ),
        ("the size of the cache is not known", 0.0, {"kv_capacity_tokens": 0}),
        ("shorter than the others", 0.0, {"prefill_s": 1.9}),
        ("it has waited enough", 18.0, {}),
        ("speeds are not known", 0.0, {"learned": False}),
    ],
)
def test_other_prompts_are_not_held_for_kv_space(make, full, request_view, why, waited_s, fields):
    assert hold_s(make(2.0), request_view(waited_s=waited_s), full(**fields)) == 0.0, why


def test_each_hold_can_be_switched_off_alone(make, busy, full, request_view):
    assert hold_s(make(2.0, prefills=0.0), request_view(), busy()) == 0.0
    assert hold_s(make(2.0, kv_space=0.0), request_view(), full()) == 0.0
    assert hold_s(make(2.0, kv_space=0.0), request_view(), busy()) == 1.5
    assert hold_s(make(2.0, prefills=0.0), request_view(), full()) == 0.75


def test_the_mean_prefill_follows_the_workload_and_a_copy_goes_its_own_way(make, busy, learn, view, request_view):
    admission_hold = make(2.0)
    copy = deepcopy(admission_hold)
    learn(copy, 10.0)
    assert hold_s(admission_hold, request_view(), busy()) == 1.5
    assert hold_s(copy, request_view(), busy(queue_wait_s=99.0)) == 0.0, "three seconds are short by now"
    for kind in (LifecycleEventKind.FIRST_TOKEN, LifecycleEventKind.FINISHED, LifecycleEventKind.FAILED):
        copy.observe(reserved(view("w", prefill_s=0.0, learned=True), request_view(), kind))
    learn(copy, 0.01, request=request_view(0))
    assert hold_s(copy, request_view(), busy(prefill_s=11.0, queue_wait_s=12.0)) == pytest.approx(2.0, rel=0.1), (
        "neither other events nor requests without prompt count"
    )


def test_each_model_has_its_own_mean_and_unused_ones_are_forgotten(make, busy, learn, request_view):
    admission_hold = make(2.0)
    for number in range(MODELS_KEPT):
        learn(admission_hold, 1.0, 1, replace(request_view(), model=f"m{number}"))
    assert hold_s(admission_hold, request_view(), busy()) == 0.0
    assert hold_s(admission_hold, replace(request_view(), model="m0"), busy()) == 2.5


def test_no_hold_is_longer_than_max_s(make, busy, full, request_view):
    assert hold_s(make(2.0, max_s=1.0), request_view(), busy()) == 1.0
    assert hold_s(make(2.0, max_s=1.0), request_view(waited_s=0.75), full()) == 0.25
    assert hold_s(make(2.0, max_s=1.0), request_view(waited_s=1.0), full()) == 0.0


# around a rule


class Holding:
    def __init__(self, hold_s, worker="w"):
        self.hold_s, self.worker = hold_s, worker

    def decide(self, request, fleet):
        return Decision((self.worker,), "own reason", hold_s=self.hold_s, until_prefills_done=False)

    def statistics(self):
        return {"held": 3}


def test_the_facts_of_the_inner_rules_choice_decide(make, fleet, form, request_view):
    busy = {**BUSY, "queued_tokens": 100}
    workers = form(fleet(a=busy, b={**busy, "queued_tokens": 50, "queue_wait_s": 2.5}))
    decision = make(2.0).decide(request_view(), workers)
    assert tuple(decision.ranked) == ("b", "a")
    assert (decision.hold_s, decision.until_prefills_done) == (0.5, True)
    assert decision.reason.endswith("; holds for prefills")
    assert make(9.0).decide(request_view(), workers).hold_s == 0.0


@pytest.mark.parametrize(("own_s", "expected"), [(0.2, (1.5, True)), (9.0, (9.0, False))])
def test_the_longer_hold_counts(make, fleet, request_view, own_s, expected):
    decision = make(2.0, inner=Holding(own_s)).decide(request_view(), fleet(w=BUSY))
    assert (decision.hold_s, decision.until_prefills_done) == expected
    assert decision.reason.startswith("own reason")


def test_an_invalid_choice_is_left_to_the_caller_and_statistics_are_the_inner_rules(make, fleet, request_view):
    assert make(2.0, inner=Holding(0.0, "nobody")).decide(request_view(), fleet(w={})).ranked == ("nobody",)
    assert make(2.0, inner=Holding(0.0)).statistics() == {"held": 3}
    assert make(2.0).statistics() == {}
