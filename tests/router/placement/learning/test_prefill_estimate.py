import random

import pytest

from router.placement.learning.prefill_estimate import ENOUGH, SpeedEstimate
from router.placement.learning.speed import Speed, attention
from router.placement.learning.utilisation import Utilisation

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


def predicted_s(estimate):
    speed = estimate.speed()
    short_s = speed.fixed_s + speed.decode_s * 1e5
    return short_s + speed.token_s * 4_000 + speed.attention_s * attention(4_000, 10_000)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [3.0, 2.0, 1 / 3])
def test_so_it_does_at_a_request_every_eight_seconds(seed, factor):
    rng = random.Random(seed)
    estimate = taught(rng, 200)
    before_s = predicted_s(estimate)
    taught(rng, 7, estimate, slow=factor)
    assert predicted_s(estimate) / before_s == pytest.approx(factor, rel=0.25)


@pytest.mark.parametrize("seed", range(5))
def test_odd_requests_are_no_change_of_speed(seed):
    rng = random.Random(seed)
    looking, forgetting = SpeedEstimate(), SpeedEstimate()
    for _ in range(3_000):
        features, seconds = draw(rng)
        seconds *= 30.0 if rng.random() < 0.05 else 1.0
        looking.observe(features, seconds)
        forgetting.observe(features, seconds, plain=False)
    assert looking.speed() == forgetting.speed()


def test_what_waited_for_something_else_is_no_change_of_speed():
    rng = random.Random(3)
    estimate = taught(rng, 200)
    before = estimate.speed().token_s
    for _ in range(10):
        features, seconds = draw(rng)
        estimate.observe(features, seconds * 5.0, plain=False)
    assert estimate.speed().token_s < 2.0 * before


def test_first_observation_puts_all_time_on_tokens():
    estimate = SpeedEstimate()
    estimate.observe((1_000.0, 1.0, 5e5, 0.0), 0.05)
    assert estimate.speed().token_s == pytest.approx(5e-5)
    assert estimate.speed().fixed_s < 1e-9
    assert estimate.learned() is None
    taught(random.Random(0), ENOUGH - 1, estimate)
    assert estimate.learned() is not None


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


RECORDED = [
    (16, 112, 0.018), (16, 112, 0.010), (16, 128, 0.010), (16, 128, 0.011), (4, 96, 0.010), (4, 96, 0.010),
    (16, 80, 0.010), (16, 80, 0.010), (15, 80, 0.010), (15, 80, 0.010), (15, 0, 0.010), (16, 0, 0.010),
    (1, 0, 0.009), (8, 8_992, 0.019), (8, 8_992, 0.045), (2, 0, 0.010),
]  # fmt: skip
"""(uncached, cached, time to first token) of one rank of a real vLLM: too few tokens to determine the token time."""


@pytest.fixture
def recorded():
    estimate = SpeedEstimate()
    for uncached, cached, seconds in RECORDED:
        estimate.observe((float(uncached), 1.0, attention(uncached, cached), 0.0), seconds)
    return estimate


def test_small_prompts_do_not_teach_the_time_of_a_token(recorded):
    assert recorded.tested
    assert recorded.learned() is None


def test_a_fit_to_noise_stays_near_the_common_speed(recorded):
    common = Speed(20e-6, 8e-3, 0.0, 0.0, 0.1)
    speed = recorded.speed(common)
    assert common.token_s <= speed.token_s <= 2.0 * common.token_s
    assert speed.attention_s == 0.0
    assert speed.fixed_s == pytest.approx(0.01, rel=0.2)
    predicted_s = speed.fixed_s + speed.token_s * 9_000
    assert abs(predicted_s - 0.188) <= speed.error_s(predicted_s, 9_000)
    utilisation = Utilisation()
    utilisation.dispatched(9_000, attention(9_000, 0), 0.0)
    assert utilisation.share(speed, 0.0) < 0.05


@pytest.mark.parametrize("slow", [0.5, 3.0])
def test_a_well_told_speed_is_hardly_shrunk(slow):
    estimate = taught(random.Random(3), 100, slow=slow)
    speed = estimate.speed(Speed(*TRUE, 0.1))
    assert estimate.learned() is not None
    assert speed.token_s == pytest.approx(slow * TRUE[0], rel=0.25)


def test_a_learned_speed_is_surer_within_its_observations():
    speed = taught(random.Random(4), 100).learned()
    near, far = speed.reach_tokens, 10 * speed.reach_tokens
    assert speed.error_s(1.0, near) == pytest.approx(speed.relative_error)
    assert speed.error_s(1.0, far) > speed.error_s(1.0, near)


def test_a_time_too_short_to_be_squared_is_no_observation():
    estimate = SpeedEstimate()
    estimate.observe((10.0, 1.0, 0.0, 0.0), 5e-196)
    assert estimate.count == 0
