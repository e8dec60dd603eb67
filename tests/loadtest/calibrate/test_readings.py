import random
from dataclasses import replace

import pytest

from backends.engine.profile import DecodeCost, PrefillCost, load_profile
from backends.engine.timing import StepTiming
from loadtest.calibrate.readings import (
    CalibrationError,
    Kind,
    Reading,
    chunk,
    fit_costs,
    judged,
    prefill_reading,
    scaled,
    step_ms,
    table,
)

PREFILL, DECODE = PrefillCost(10.0, 60.0, 1.2), DecodeCost(12.0, 0.05, 40.0)
BUDGET = 8_192


def prefill(tokens, cached=0, budget=BUDGET):
    return prefill_reading(1.0, tokens, cached, budget)


def decode(batch, context):
    return Reading(Kind.DECODE, f"{batch} x {context}", 1.0, decodes=batch, context_tokens=batch * context)


SHAPES = [
    *[prefill(tokens) for tokens in (512, 2_048, 8_192, 32_768) for _ in range(2)],
    prefill(16, 32_752), prefill(528, 32_752),
    *[decode(batch, context) for batch, context in ((1, 512), (8, 4_096), (32, 256), (64, 1_024))],
]  # fmt: skip
HELD_OUT = [prefill(1_000), prefill(16_000), prefill(600, 30_000), decode(16, 2_000), decode(48, 3_000)]


def measured(shapes, noise, seed=0, costs=(PREFILL, DECODE)):
    rng = random.Random(seed)
    return [replace(one, ms=step_ms(one, *costs) * (1 + rng.uniform(-noise, noise))) for one in shapes]


def test_the_model_is_the_engines():
    profile = replace(load_profile("llama-3.1-8b-h100"), prefill=PREFILL, decode=DECODE)
    timing = StepTiming(profile, random.Random(0))
    mixed = Reading(Kind.MIXED, "", 1.0, 1, 1_000, 1_000 * 2_500.0, 8, 9_000.0)
    assert step_ms(mixed, PREFILL, DECODE) == pytest.approx(timing.step_s([(1_000, 2_000)], 8, 9_000) * 1e3)
    long = sum(timing.step_s([one], 0, 0) for one in chunk(20_000, 64, BUDGET)) * 1e3
    assert step_ms(prefill(20_000, 64), PREFILL, DECODE) == pytest.approx(long)


def test_exact_readings_give_the_constants_back():
    fitted = fit_costs(measured(SHAPES, 0.0))
    assert (fitted.prefill.a_ms, fitted.prefill.b_us, fitted.prefill.d_ns) == pytest.approx((10.0, 60.0, 1.2))
    assert (fitted.decode.a_ms, fitted.decode.b_ms, fitted.decode.k_ns) == pytest.approx((12.0, 0.05, 40.0))
    assert fitted.r2 == pytest.approx({Kind.PREFILL: 1.0, Kind.DECODE: 1.0})


@pytest.mark.parametrize("seed", range(10))
def test_planted_constants_are_recovered_from_noise_of_five_percent(seed):
    """A decode reading is the mean of a hundred steps, so that its noise is a tenth of a step's."""
    noisy = [*measured(SHAPES[:10], 0.05, seed), *measured(SHAPES[10:], 0.005, seed)]
    fitted = fit_costs(noisy)
    for one in measured(HELD_OUT, 0.0):
        assert step_ms(one, fitted.prefill, fitted.decode) == pytest.approx(one.ms, rel=0.05)


def test_times_that_do_not_follow_the_model_are_refused():
    noisy = [replace(one, ms=one.ms * (3.0 if index % 2 else 1.0)) for index, one in enumerate(measured(SHAPES, 0))]
    with pytest.raises(CalibrationError, match=r"(?s)prefill steps do not follow the model: r2 is .*512 new"):
        fit_costs(noisy)


CURVE = {1: 4.7, 8: 10.6, 32: 21.9, 64: 26.2, 128: 32.3, 256: 42.3}
"""A mixture of experts reads more experts in a larger batch: Qwen3-30B-A3B on an H100, context 2,048, ms."""
CONCAVE = [
    replace(decode(batch, context), ms=ms + 38e-6 * batch * (context - 2_048))
    for batch, ms in CURVE.items()
    for context in (512, 2_048, 8_192)
]


def test_a_concave_decode_is_refused_as_a_line():
    with pytest.raises(CalibrationError, match="mixture of experts"):
        fit_costs([*measured(SHAPES[:10], 0.0), *CONCAVE])


def test_a_concave_decode_is_a_curve_of_batches():
    found = fit_costs([*measured(SHAPES[:10], 0.0), *CONCAVE], by_batch=True)
    assert found.decode.k_ns == pytest.approx(38.0)
    assert found.worst(Kind.DECODE) < 1e-6
    assert [batch for batch, _ in found.decode.by_batch] == list(CURVE)
    assert step_ms(decode(48, 2_048), found.prefill, found.decode) == pytest.approx((21.9 + 26.2) / 2)


def test_too_few_readings_are_refused():
    with pytest.raises(CalibrationError, match="2 readings"):
        fit_costs(measured(SHAPES[:2], 0.0))


def test_kernel_costs_are_scaled_to_an_engine():
    kernels = judged(measured(SHAPES, 0.0), PREFILL, DECODE)
    engine = (
        PrefillCost(10.0 * 1.3 + 2.0, 60.0 * 1.3, 1.2 * 1.3),
        DecodeCost(12.0 * 0.9 + 1.0, 0.05 * 0.9, 40.0 * 0.9),
    )
    few = measured([prefill(512), prefill(30_000), decode(1, 512), decode(64, 1_024)], 0.0, costs=engine)
    found = scaled(kernels, few)
    assert (found.prefill.a_ms, found.prefill.b_us) == pytest.approx((15.0, 78.0))
    assert (found.decode.a_ms, found.decode.k_ns) == pytest.approx((11.8, 36.0))


def test_a_table_has_every_reading_and_warns_of_mixed_steps():
    mixed = Reading(Kind.MIXED, "1,000 beside 8", 200.0, 1, 1_000, 500_000.0, 8, 8_000.0)
    text = table(judged([*measured(SHAPES, 0.0), mixed], PREFILL, DECODE))
    assert "prefill: 512 new" in text and "decode: 64 x 1024" in text and "mixed: 1,000 beside 8" in text
    assert "warning: mixed steps are up to 63% off" in text
