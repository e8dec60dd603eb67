from dataclasses import replace

import pytest

from loadtest.calibrate.readings import CalibrationError
from loadtest.calibrate.worker.plan import DECODE_TOKENS, EXTENSION_TOKENS, Batch, WorkerLimits, plan

LARGE = WorkerLimits(131_072, 440_000, 16, 8_192, 256, True)


def test_the_plan_of_a_large_worker():
    steps = plan(LARGE)
    assert steps.prompts == (512, 2_048, 8_192, 32_768)
    shapes = [(batch.sequences, batch.prompt_tokens) for batch in steps.batches]
    assert shapes == [(1, 512), (8, 4_096), (32, 256), (64, 1_024)]
    assert 12 <= steps.requests() <= 20
    assert steps.mixed_prompts == (2_042, 4_084)
    text = "\n".join(steps.lines())
    assert text.startswith(f"18 requests with {steps.prompt_tokens():,} prompt tokens") and "64 x 1,024" in text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_model_len": 4_096},
        {"max_model_len": 2_048, "max_num_batched_tokens": 2_048},
        {"kv_tokens": 20_000},
        {"max_num_seqs": 8, "kv_tokens": 6_000, "max_model_len": 4_096},
        {"max_num_seqs": 100, "max_num_batched_tokens": 256},
        {"prefix_caching": False},
    ],
)
def test_a_plan_stays_within_the_limits(changes):
    limits = replace(LARGE, **changes)
    steps = plan(limits)
    longest = steps.prompts[-1] + (steps.extension_tokens or 0)
    assert longest < min(limits.max_model_len, limits.kv_tokens)
    assert (steps.extension_tokens is None) == (not limits.prefix_caching)
    for batch in (*steps.batches, steps.mixed):
        tokens = batch.prompt_tokens + batch.output_tokens
        assert batch.sequences <= limits.max_num_seqs and tokens <= limits.max_model_len
        assert batch.sequences * tokens <= limits.kv_tokens
    assert all(tokens + steps.mixed.sequences <= limits.max_num_batched_tokens for tokens in steps.mixed_prompts)
    contexts = [batch.sequences * batch.prompt_tokens for batch in steps.batches]
    assert contexts != sorted(contexts), "contexts must not grow with the batch"


@pytest.mark.parametrize(
    "changes", [{"max_model_len": 1_000}, {"kv_tokens": 1_200}, {"max_num_seqs": 4}, {"kv_tokens": 4_000}]
)
def test_a_worker_that_is_too_small_is_refused(changes):
    with pytest.raises(CalibrationError, match="too small"):
        plan(replace(LARGE, **changes))


def test_no_repeated_prefix_is_said():
    steps = plan(replace(LARGE, prefix_caching=False))
    assert "no repeated prefix" in "\n".join(steps.lines())
    assert steps.batches[0] == Batch(1, 512, DECODE_TOKENS) and EXTENSION_TOKENS == 512
