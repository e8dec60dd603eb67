import pytest

from loadtest.lab.run_cell import run_cell


@pytest.mark.parametrize(
    ("models", "cause"),
    [({"max_num_seqs": 1}, "batch"), ({"kv_tokens": 12_000}, "kv"), ({"chunk_tokens": 64}, "prefill")],
    ids=str,
)
def test_requests_wait_for_what_is_scarce(cell, models, cause):
    waiting = run_cell(cell(models=models)).pressure.waiting
    assert max(waiting, key=waiting.__getitem__) == cause


def test_slower_steps_make_slower_answers_and_fuller_batches(cell):
    usual, slow = (run_cell(cell(models={"step_time": factor, "jitter": 0.0})) for factor in (1.0, 2.0))
    assert slow.all.tpot_mean_ms > 1.9 * usual.all.tpot_mean_ms
    assert 0.0 < usual.pressure.batch_share < slow.pressure.batch_share < 1.0
    assert 0.0 < usual.pressure.kv_share < slow.pressure.kv_share < 1.0
