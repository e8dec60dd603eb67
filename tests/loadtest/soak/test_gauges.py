import pytest

from loadtest.soak.gauges import Sample, growth_bytes, left_over

REST = {"queued_requests": 0, "queued_tokens": 0, "running_requests": 0, "kv_tokens": 0}


def worker(**load):
    return {"candidates": [{"id": "a:1", "load": {**REST, **load}}]}


def test_growth_is_the_second_halfs():
    filling = [Sample(float(at), at * 1_000) for at in range(100)]
    flat = [Sample(float(at), 100_000) for at in range(100, 200)]
    assert growth_bytes(filling + flat) == pytest.approx(0)
    assert growth_bytes(filling) == pytest.approx(49_000)


def test_spikes_are_no_growth():
    samples = [Sample(float(at), 100_000 + 50_000 * (at % 10 == 0)) for at in range(200)]
    assert abs(growth_bytes(samples)) < 5_000


def test_too_few_samples_say_nothing():
    assert growth_bytes([]) == growth_bytes([Sample(0.0, 1)]) == 0


def test_left_over_load_is_named():
    assert left_over([worker()], {}) == []
    found = left_over([worker(kv_tokens=7)], {"warmroute_active_requests": 2.0})
    assert found == ["warmroute_active_requests is 2", "a:1 has kv_tokens 7"]
