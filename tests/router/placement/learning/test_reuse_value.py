import pytest

from router.placement.learning import reuse_value
from router.placement.learning.reuse_value import ReuseValue

CHAT = [1, 2, 3]
NEXT = [1, 2, 3, 4]


@pytest.fixture
def seen():
    """Return the value after contexts of ten seconds each whose sessions returned after these times; None: never."""

    def make(*gaps_s, model="m", tokens=1_000):
        found = ReuseValue()
        for number, gap_s in enumerate(gaps_s):
            at_s = 100.0 * number
            found.rests(model, CHAT, tokens, at_s, at_s + 10.0)
            found.arrived([9], at_s + 20.0) if gap_s is None else found.arrived(NEXT, at_s + gap_s)
        return found

    return make


@pytest.mark.parametrize(
    ("gaps_s", "pays"),
    [
        ((), False),
        ((1.0,), True),
        ((9.9,), True),
        ((11.0,), False),
        ((None,), False),
        ((1.0, None), False),
        ((1.0, 1.0, None), True),
        ((4.0, 4.0, None), True),
        ((6.0, 6.0, None), False),
        ((0.0,) * 10 + (None,) * 20, False),
    ],
)
def test_it_pays_where_it_has_saved_more_than_it_held(seen, gaps_s, pays):
    assert seen(*gaps_s).pays("m") is pays


def test_large_contexts_count_more(seen):
    found = seen(1.0, tokens=1_000)
    found.rests("m", [7], 100, 200.0, 210.0)
    found.arrived([], 300.0)
    assert found.pays("m")
    found.rests("m", [7], 9_000, 300.0, 310.0)
    found.arrived([], 400.0)
    assert not found.pays("m")


def test_each_model_has_its_own_value(seen):
    found = seen(1.0, model="agents")
    found.rests("chat", [7], 9_000, 300.0, 310.0)
    found.arrived([], 400.0)
    assert (found.pays("agents"), found.pays("chat"), found.pays("another")) == (True, False, False)


@pytest.mark.parametrize("prompt", [[1, 2], [1, 2, 4], [5, 2, 3], []])
def test_only_a_prompt_that_goes_on_with_it_counts(seen, prompt):
    found = seen()
    found.rests("m", CHAT, 1_000, 0.0, 10.0)
    found.arrived(prompt, 1.0)
    assert not found.pays("m")
    found.arrived(NEXT, 2.0)
    assert found.pays("m")
    found.arrived(NEXT, 3.0)
    found.arrived([], 99.0)
    assert found.pays("m"), "once"


def test_each_has_its_own_time(seen):
    found = seen(1.0)
    found.rests("m", [7], 1, 100.0, 150.0)
    found.rests("m", [8], 1_000_000, 100.0, 101.0)
    assert found.pays("m")
    found.arrived([8], 120.0)
    assert not found.pays("m"), "it came, and too late"


def test_the_same_prompt_again_counts_once_and_from_then_on(seen):
    found = seen()
    found.rests("m", CHAT, 1_000, 0.0, 10.0)
    found.rests("m", CHAT, 1_000, 9.0, 19.0)
    found.arrived([9], 12.0)
    assert not found.pays("m"), "nothing is known yet"
    found.arrived(NEXT, 13.0)
    assert found.pays("m")


def test_of_many_that_begin_alike_those_that_are_gone_on_with_are_found():
    found = ReuseValue()
    for number in range(200):
        found.rests("m", [1, *range(1_000 * number, 1_000 * number + number % 7 + 1)], 10, 0.0, 10.0)
    found.rests("m", [1, 2], 1_000, 0.0, 10.0)
    found.arrived([1, 2, 3], 1.0)
    assert found.pays("m")
    found.arrived([], 11.0)
    assert not found.pays("m"), "the others have held theirs for nothing"


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(reuse_value, "CONTEXTS_KEPT", 3)
    monkeypatch.setattr(reuse_value, "MODELS_KEPT", 2)
    found = ReuseValue()
    for number in range(5):
        found.rests(f"m{number}", [number], 1_000, 0.0, 10.0)
    for number in range(5):
        found.arrived([number], 1.0)
    assert [found.pays(f"m{number}") for number in range(5)] == [False, False, False, True, True]
