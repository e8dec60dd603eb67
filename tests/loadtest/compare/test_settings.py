import pytest

from loadtest.compare.settings import Unplayable, cells, first_cell, kv_tokens
from loadtest.compare.workers import vllm_flags
from loadtest.lab.saturation import Saturation

ONE = Saturation("lpwl", 0.5, 10.0)


def test_a_cell_for_every_rule_of_every_seed_at_a_fraction_of_saturation(flags):
    found = cells(flags("--seeds", "2", "--first-seed", "7", "--load", "0.8"), ONE)
    assert [[(cell.seed, cell.policy) for cell in same] for same in found] == [
        [(7, "lpwl"), (7, "round_robin")],
        [(8, "lpwl"), (8, "round_robin")],
    ]
    assert [cell.seed for cell, _ in cells(flags("--load", "0.8"), ONE)] == [0, 1, 2]
    assert {(cell.rate, cell.load) for same in found for cell in same} == {(0.4, 0.8)}


def test_a_rate_is_taken_as_it_is(flags):
    [[cell, _]] = cells(flags("--seeds", "1", "--rate", "0.7"), None)
    assert (cell.rate, cell.load) == (0.7, None)


@pytest.mark.parametrize("backend", ["vllm", "embedded"])
def test_both_sides_have_the_same_workers(flags, backend):
    args = flags("--backend", backend, "--time-scale", "3")
    models = first_cell(args).setting.models
    assert (models.block_tokens, models.kv_tokens, models.speed_spread) == (16, 40_000, 0.0)
    assert models.async_scheduling == (backend == "vllm")
    said = " ".join(vllm_flags(args))
    assert said.endswith(
        "--num-gpu-blocks-override 2500 --max-num-batched-tokens 8192 --max-num-seqs 256 --max-model-len 39984"
    )


def test_without_a_cache_size_both_take_the_profiles(flags):
    args = flags()
    args.kv_tokens = None
    assert first_cell(args).setting.models.kv_tokens is None
    assert kv_tokens(args) > 100_000
    assert "--max-model-len 131072" in " ".join(vllm_flags(args))


def test_a_window_that_is_all_warm_up_is_refused(flags):
    with pytest.raises(Unplayable, match="make the window longer"):
        first_cell(flags("--warm-up-s", "5"))


def test_a_call_that_fits_no_worker_is_refused(flags):
    with pytest.raises(Unplayable, match="a worker takes 2,384; take a trace with shorter ones"):
        cells(flags("--kv-tokens", "2400"), ONE)


def test_a_window_without_a_call_is_refused(flags):
    with pytest.raises(Unplayable, match="seed 0 has no call in the window"):
        cells(flags("--window-s", "0.01", "--warm-up-s", "0"), ONE)
