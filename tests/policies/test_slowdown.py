import pytest

from policies.slowdown import Slowdown
from policies.view import LifecycleEvent, LifecycleEventKind, RequestView, WorkerId


@pytest.fixture
def slowdown():
    return Slowdown(window_s=100.0)


@pytest.fixture
def answer(slowdown):
    def run(request_id, prefix, at_s, ttft_s, end=LifecycleEventKind.FIRST_TOKEN):
        request = RequestView(request_id, "m", 1, 16, ())
        slowdown.observe(LifecycleEvent(LifecycleEventKind.RESERVED, request, WorkerId("a"), at_s), prefix)
        slowdown.observe(LifecycleEvent(end, request, WorkerId("a"), at_s + ttft_s), prefix)

    return run


def test_twice_the_mean_of_the_window_before(slowdown, answer):
    answer("1", 7, 10.0, 1.0)
    answer("2", 7, 20.0, 3.0)  # mean 2
    assert not slowdown.slowed(7, 50.0)
    answer("3", 7, 110.0, 4.0)  # 4 is not more than twice 2
    assert not slowdown.slowed(7, 120.0)
    answer("4", 7, 130.0, 4.2)
    assert slowdown.slowed(7, 140.0)
    assert not slowdown.slowed(8, 140.0)
    assert not slowdown.slowed(None, 140.0)
    assert not slowdown.slowed(7, 200.0)  # nothing is known of that window yet


def test_a_window_without_requests_ends_the_comparison(slowdown, answer):
    answer("1", 7, 10.0, 1.0)
    answer("2", 7, 210.0, 9.0)
    assert not slowdown.slowed(7, 230.0)
    answer("3", 7, 310.0, 9.0)
    assert not slowdown.slowed(7, 330.0)


def test_only_first_tokens_count_and_ends_are_forgotten(slowdown, answer):
    answer("1", 7, 10.0, 1.0, LifecycleEventKind.FAILED)
    answer("2", None, 10.0, 1.0)
    answer("3", 7, 20.0, 1.0, LifecycleEventKind.FINISHED)
    assert not slowdown._reserved
    assert not slowdown._delays
    slowdown.observe(
        LifecycleEvent(LifecycleEventKind.FIRST_TOKEN, RequestView("never", "m", 1, 16, ()), WorkerId("a"), 1.0), 7
    )


def test_memory_is_bounded(slowdown, answer, monkeypatch):
    monkeypatch.setattr("policies.slowdown._KEPT", 10)
    monkeypatch.setattr("policies.slowdown._WAITING_KEPT", 10)
    for number in range(100):
        answer(f"r{number}", number, 1.0, 1.0)
        slowdown.observe(
            LifecycleEvent(LifecycleEventKind.RESERVED, RequestView(f"w{number}", "m", 1, 16, ()), WorkerId("a"), 1.0),
            7,
        )
    assert len(slowdown._delays) == len(slowdown._reserved) == 10
