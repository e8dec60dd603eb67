import pytest

from policies.history import CHUNKS_KEPT, PLACEMENTS_KEPT, WORKERS_KEPT, History, PlacedLoad, chunks_of
from policies.view import LifecycleEvent, LifecycleEventKind, WorkerId


@pytest.fixture
def history():
    return History(window_s=100.0)


def unpriced(tokens):
    return PlacedLoad(tokens, tokens)


@pytest.fixture
def record(history, fleet, request_view):
    def place(worker, at_s, *blocks, tokens=None, **fields):
        request = request_view(tokens=tokens or 512 * len(blocks), blocks=blocks, block_tokens=512)
        placed = fleet(**{worker: fields}).workers[0] if fields else None
        history.record(LifecycleEvent(LifecycleEventKind.RESERVED, request, WorkerId(worker), at_s, None, placed))

    return place


def test_loads_count_placements_within_the_window(history, record):
    record("a", 0.0, 1, 2, uncached_tokens=100)
    record("a", 50.0, 1, 2, 3, uncached_tokens=30)
    record("b", 60.0, 9)
    assert history.loads(100.0) == {"a": unpriced(130), "b": unpriced(512)}
    assert history.loads(100.5) == {"a": unpriced(30), "b": unpriced(512)}
    assert history.loads(200.0) == {"a": PlacedLoad(), "b": PlacedLoad()}
    assert history.loads(100.0)["a"] == unpriced(130)  # reading changes nothing
    record("b", 155.0, 9)
    assert history.loads(155.0) == {"a": PlacedLoad(), "b": unpriced(1_024)}
    assert history.count == 4


def test_load_is_priced_at_placement_once_speed_is_learned(history, record):
    record("a", 0.0, 1, uncached_tokens=100, prefill_s=100.0)
    record("a", 1.0, 1, uncached_tokens=100, prefill_s=2.0, learned=True)
    record("a", 2.0, 1, uncached_tokens=50, prefill_s=0.5, learned=True)
    assert history.loads(2.0) == {"a": PlacedLoad(250, 100, 2.5, 0.0)}
    assert history.loads(101.5) == {"a": PlacedLoad(50, 0, 0.5, 0.0)}


def test_victims_are_the_least_recently_used_times_their_uses(history, record, fleet):
    capacity = {"kv_capacity_tokens": 4 * 512}
    record("a", 0.0, 1, 2, **capacity)
    record("a", 1.0, 1, 3, **capacity)  # used last: 3, then 1; 2 is the oldest
    view = fleet(a={"uncached_tokens": 512, **capacity}).workers[0]
    assert history.victim_tokens(view) == 0  # one more fits
    for tokens, uses in [(513, 1), (1_025, 2), (2_048, 4)]:
        view = fleet(a={"uncached_tokens": tokens, **capacity}).workers[0]
        assert history.victim_tokens(view) == 512 * uses
    assert history.victim_tokens(fleet(a={"uncached_tokens": 9_999, "kv_capacity_tokens": 0}).workers[0]) == 0
    assert history.victim_tokens(fleet(b={"uncached_tokens": 9_999, **capacity}).workers[0]) == 0
    record("a", 100.5, 7, **capacity)  # the first request has left the window: 2 was not used within it
    view = fleet(a={"uncached_tokens": 512, **capacity}).workers[0]
    assert history.victim_tokens(view) == 0


def test_a_cache_holds_what_fits(history, record):
    for first in range(10):
        record("a", 0.0, 2 * first, 2 * first + 1, kv_capacity_tokens=4 * 512)
    assert list(history._pasts["a"].chunks) == [17, 16, 19, 18]


def test_chunks_are_whole_and_named_by_their_last_block(request_view):
    assert chunks_of(request_view(blocks=tuple(range(70)), block_tokens=16)) == (31, 63)
    assert chunks_of(request_view(blocks=(5, 6), block_tokens=1_024)) == (5, 6)
    assert chunks_of(request_view()) == ()


def test_memory_is_bounded(history, record, monkeypatch):
    monkeypatch.setattr("policies.history.PLACEMENTS_KEPT", 50)
    monkeypatch.setattr("policies.history.WORKERS_KEPT", 20)
    monkeypatch.setattr("policies.history.CHUNKS_KEPT", 30)
    for number in range(300):
        record(f"w{number % 40}", 0.0, number, number + 1_000)
        record("a", 0.0, number)
    assert len(history._placements) <= 50
    assert len(history._pasts) <= 20
    assert len(history._pasts["a"].chunks) <= 30
    tokens = sum(placed.load.uncached_tokens for placed in history._placements if placed.worker == "a")
    assert history.loads(0.0)["a"] == unpriced(tokens)
    assert min(PLACEMENTS_KEPT, WORKERS_KEPT, CHUNKS_KEPT) > 0
