import random

import pytest

from backends.engine.profile import load_profile
from backends.engine.timing import StepTiming


def timing(name="llama-3.1-8b-h100", seed=0, **options):
    return StepTiming(load_profile(name), random.Random(seed), **options)


# Points of the kernel database the profiles were fitted to, ms; the margins are the fits' stated maximum errors.
PREFILL_POINTS = [
    ("llama-3.1-8b-h100", 512, 0, 12.0, 0.18),
    ("llama-3.1-8b-h100", 2_048, 0, 43.5, 0.01),
    ("llama-3.1-8b-h100", 8_192, 0, 199.7, 0.10),
    ("llama-3.1-8b-h100", 32_768, 0, 1_082, 0.05),
    ("llama-3.1-8b-h100", 512, 32_768, 24.9, 0.08),
    ("llama-3.1-8b-a100", 2_048, 0, 125.2, 0.015),
]


@pytest.mark.parametrize(("name", "new", "cached", "expected_ms", "margin"), PREFILL_POINTS)
def test_a_prefill_alone_costs_the_prefill_fit(name, new, cached, expected_ms, margin):
    assert timing(name).step_s([(new, cached)], 0, 0) * 1e3 == pytest.approx(expected_ms, rel=margin)


@pytest.mark.parametrize(("decodes", "context", "expected_ms"), [(1, 512, 6.17), (32, 2_048, 9.6), (128, 2_048, 18.1)])
def test_a_decode_alone_costs_the_decode_fit(decodes, context, expected_ms):
    assert timing().step_s([], decodes, decodes * context) * 1e3 == pytest.approx(expected_ms, rel=0.045)


def test_prefill_throughput_at_8k_is_that_of_the_table():
    for name, tokens_per_s in {
        "llama-3.1-70b-4xh100": 14_200,
        "qwen3-32b-2xh100": 17_200,
        "llama-3.1-8b-h200": 41_200,
    }.items():
        assert 8192 / timing(name).step_s([(8192, 0)], 0, 0) == pytest.approx(tokens_per_s, rel=0.12)


def test_a_mixed_step_is_the_decode_step_plus_the_chunk_without_its_fixed_part():
    clock = timing()
    decode_s = clock.step_s([], 32, 65_536)
    chunk_s = clock.step_s([(2_048, 1_024)], 0, 0)
    assert clock.step_s([(2_048, 1_024)], 32, 65_536) == pytest.approx(decode_s + chunk_s - 3.9e-3)


def test_several_chunks_pay_one_fixed_part():
    clock = timing()
    apart = clock.step_s([(500, 0)], 0, 0) + clock.step_s([(700, 160)], 0, 0)
    assert clock.step_s([(500, 0), (700, 160)], 0, 0) == pytest.approx(apart - 3.9e-3)


def test_an_empty_step_costs_nothing():
    assert timing().step_s([], 0, 0) == 0.0


def test_speed_divides_the_step_time():
    assert timing(speed=2.0).step_s([(512, 0)], 3, 99) == pytest.approx(timing().step_s([(512, 0)], 3, 99) / 2)


def test_jitter_stays_within_its_bounds_and_follows_the_seed():
    plain_s = timing().step_s([(512, 0)], 0, 0)
    jittered, same, other = (timing(jitter=0.05, seed=seed) for seed in (1, 1, 2))
    draws = [jittered.step_s([(512, 0)], 0, 0) / plain_s for _ in range(500)]
    assert 0.95 <= min(draws) < 0.96
    assert 1.04 < max(draws) <= 1.05
    assert [same.step_s([(512, 0)], 0, 0) / plain_s for _ in range(500)] == draws
    assert other.step_s([(512, 0)], 0, 0) / plain_s != draws[0]


@pytest.mark.parametrize("options", [{"jitter": -0.1}, {"jitter": 1.0}, {"speed": 0.0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        timing(**options)


def test_statistics_add_up():
    clock = timing()
    spent_s = clock.step_s([(100, 0)], 0, 0) + clock.step_s([], 1, 100)
    assert clock.statistics() == {"steps": 2, "busy_s": pytest.approx(spent_s)}
