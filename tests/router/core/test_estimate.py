import random

import pytest

from router.core.estimate import ENOUGH, UTILISATION_CAP, Decoding, Speed, SpeedEstimate, Utilisation, median_speed
from router.core.ledger import attention

TRUE = (18.5e-6, 8e-3, 0.8e-9, 60e-9)


def draw(rng, slow=1.0, noise=0.1):
    uncached, cached = rng.choice([50, 200, 2_000, 8_000]), rng.choice([0, 2_000, 20_000])
    queued, decoding = rng.choice([0, 0, 500, 3_000]), rng.randint(0, 200_000)
    features = (queued + uncached, 1.0, attention(queued, 0) + attention(uncached, cached), decoding)
    seconds = slow * sum(c * x for c, x in zip(TRUE, features, strict=True)) * rng.lognormvariate(0, noise)
    return features, seconds


def taught(rng, count, estimate=None, **how):
    estimate = estimate or SpeedEstimate()
    for _ in range(count):
        estimate.observe(*draw(rng, **how))
    return estimate


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_coefficients(seed):
    speed = taught(random.Random(seed), 200).speed()
    assert speed.token_s == pytest.approx(TRUE[0], rel=0.25)
    assert speed.fixed_s == pytest.approx(TRUE[1], rel=0.25)
    assert speed.decode_s == pytest.approx(TRUE[3], rel=0.25)
    assert 0.0 < speed.relative_error < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_outliers_do_not_move_it_far(seed):
    rng = random.Random(seed)
    estimate = SpeedEstimate()
    for _ in range(300):
        features, seconds = draw(rng)
        estimate.observe(features, seconds * 30.0 if rng.random() < 0.02 else seconds)
    assert estimate.speed().token_s == pytest.approx(TRUE[0], rel=0.5)


def test_a_throttled_gpu_shows_within_a_minute_of_modest_traffic():
    rng = random.Random(1)
    estimate = taught(rng, 200)
    before = estimate.speed().token_s
    taught(rng, 120, estimate, slow=3.0)  # two requests a second
    assert estimate.speed().token_s > 2.0 * before


def test_first_observation_puts_all_time_on_tokens():
    estimate = SpeedEstimate()
    estimate.observe((1_000.0, 1.0, 5e5, 0.0), 0.05)
    assert estimate.speed().token_s == pytest.approx(5e-5)
    assert estimate.speed().fixed_s < 1e-9
    assert not estimate.learned
    taught(random.Random(0), ENOUGH - 1, estimate)
    assert estimate.learned


def test_never_negative_whatever_comes():
    rng = random.Random(2)
    estimate = SpeedEstimate()
    for _ in range(500):
        features = (rng.choice([1.0, 1e5]), 1.0, rng.choice([0.0, 1e10]), rng.choice([0.0, 1e7]))
        estimate.observe(features, 10.0 ** rng.uniform(-4, 3))
        speed = estimate.speed()
        assert min(speed.token_s, speed.fixed_s, speed.attention_s, speed.decode_s, speed.relative_error) >= 0.0
    count = estimate.count
    estimate.observe((0.0, 1.0, 0.0, 0.0), 1.0)
    estimate.observe((10.0, 1.0, 0.0, 0.0), 0.0)
    assert estimate.count == count


def test_utilisation_follows_dispatched_work():
    speed = Speed(1e-4, 0.0, 0.0, 0.0, 0.0)
    utilisation = Utilisation()
    assert utilisation.share(speed, 5.0) == 0.0
    for tick in range(600):
        utilisation.dispatched(1_000, 0.0, tick * 0.2)  # 0.1 s of work each 0.2 s
    assert utilisation.share(speed, 120.0) == pytest.approx(0.5, rel=0.1)
    assert utilisation.share(speed, 180.0) == pytest.approx(0.5 / 2.718, rel=0.15)
    utilisation.dispatched(10_000_000, 0.0, 180.0)
    assert utilisation.share(speed, 180.0) == UTILISATION_CAP


def test_utilisation_is_modest_at_the_first_request():
    utilisation = Utilisation()
    utilisation.dispatched(1_000, 0.0, 50.0)
    assert utilisation.share(Speed(1e-4, 0.0, 0.0, 0.0, 0.0), 50.0) == pytest.approx(0.01, rel=0.1)


def test_decoding_expects_what_it_has_seen_up_to_the_limit():
    decoding = Decoding()
    decoding.observe(None, None)
    assert decoding.expected_s(None) == 0.0
    decoding.observe(None, 300)
    assert decoding.expected_s(None) == 0.0
    for _ in range(200):
        decoding.observe(0.99, 100)
    assert decoding.expected_s(None) == pytest.approx(1.0, rel=0.1)
    assert decoding.expected_s(10) == pytest.approx(0.1, rel=0.01)


def test_median_is_by_coefficient_and_optimistic():
    middle = median_speed([Speed(1, 6, 0, 2, 0.1), Speed(3, 4, 0, 1, 0.3), Speed(2, 5, 9, 3, 0.2)])
    assert middle == Speed(2, 5, 0, 2, 0.3)
    assert median_speed([Speed(1, 0, 0, 0, 0), Speed(3, 0, 0, 0, 0)]).token_s == 1
