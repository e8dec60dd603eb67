import pytest

from loadtest.calibrate.readings import CalibrationError, Kind
from loadtest.calibrate.worker.plan import Batch
from loadtest.calibrate.worker.tokens import Arrival, decode_reading, mixed_reading

BATCH = Batch(sequences=2, prompt_tokens=100, output_tokens=20)
STEP_S = 0.01


def streamed(starts=(0.0, 0.05), tokens=20, step_s=STEP_S):
    """Each sequence gets a token per step from its start on."""
    found = [Arrival(start + step * step_s, n, 1) for n, start in enumerate(starts) for step in range(tokens)]
    return sorted(found, key=lambda one: one.at_s)


def test_a_decode_step_is_the_mean_while_all_run():
    """The second starts 5 steps after the first, so that 14 steps have both, with 6 + 1 tokens at their begin."""
    reading = decode_reading(BATCH, streamed())
    assert (reading.kind, reading.decodes, reading.ms) == (Kind.DECODE, 2, pytest.approx(10.0))
    assert reading.context_tokens == 2 * 100 + 7 + 13


def test_steps_before_the_last_sequence_starts_do_not_count():
    slow_start = [Arrival(one.at_s - 0.5 if one.at_s < 0.045 else one.at_s, one.sequence, 1) for one in streamed()]
    assert decode_reading(BATCH, slow_start).ms == pytest.approx(10.0)


def test_several_tokens_in_an_event_are_several_steps():
    merged = [Arrival(one.at_s, one.sequence, 2) for one in streamed(tokens=20) if round(one.at_s * 100) % 2 == 1]
    found = decode_reading(BATCH, [Arrival(-0.01, 0, 1), *merged])
    assert found.ms == pytest.approx(10.0, rel=0.15)


def test_sequences_that_never_run_together_are_refused():
    with pytest.raises(CalibrationError, match="only 0 had all 2 sequences"):
        decode_reading(BATCH, streamed(starts=(0.0, 1.0)))


def test_a_sequence_that_ends_early_is_refused():
    with pytest.raises(CalibrationError, match="ended after 12 of 20"):
        decode_reading(BATCH, streamed(tokens=12))


def test_a_mixed_step_is_the_long_gap():
    late = [Arrival(one.at_s + (0.09 if one.at_s > 0.095 else 0.0), one.sequence, 1) for one in streamed((0.0, 0.0))]
    reading = mixed_reading(BATCH, late, 500, sent_s=0.08, answered_s=0.2)
    assert (reading.kind, reading.new_tokens, reading.decodes) == (Kind.MIXED, 500, 2)
    assert reading.ms == pytest.approx(100.0)
    assert reading.context_tokens == 2 * (100 + 10)


def test_a_token_that_is_seen_late_does_not_make_a_mixed_step_longer():
    stream = [Arrival(one.at_s + (0.09 if one.at_s > 0.095 else 0.0), one.sequence, 1) for one in streamed((0.0, 0.0))]
    seen = [Arrival(one.at_s + (0.004 if 0.185 < one.at_s < 0.195 else 0.0), one.sequence, 1) for one in stream]
    assert mixed_reading(BATCH, seen, 500, 0.08, 0.2).ms == pytest.approx(100.0, rel=0.01)


def test_a_prompt_after_the_decodes_is_refused():
    with pytest.raises(CalibrationError, match="ended before the prompt"):
        mixed_reading(BATCH, streamed(), 500, sent_s=1.0, answered_s=1.1)
