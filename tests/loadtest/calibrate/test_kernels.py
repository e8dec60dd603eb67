"""Operations and steps without torch: on a made-up GPU, or with planted times."""

import random
from dataclasses import replace

import pytest

from loadtest.calibrate.kernels.compose import GPU_GRID, Ranks, compose
from loadtest.calibrate.kernels.operations import AllReduce, Attention, Elementwise, Gemm, step_operations
from loadtest.calibrate.kernels.shape import shape_of
from loadtest.calibrate.readings import Kind, fit_costs, step_ms
from tests.loadtest.calibrate.test_shape import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    QWEN3_30B_A3B,
    QWEN3_32B,
)

ROOM = 10_000_000


def gemms(config, new, context, sequences=1, ranks=1):
    found = step_operations(shape_of(config), ranks, new, context, sequences)
    return {one: count for one, count in found.items() if isinstance(one, Gemm)}


def weights(one):
    return one.groups * one.inner * one.columns


def cached(one):
    """Return the keys and values that are read, as numbers."""
    return one.sequences * one.context * (one.key if one.shared else one.kv_heads * (one.key + one.value))


def test_a_dense_layer_has_four_products():
    assert gemms(LLAMA_8B, 512, 512) == {
        Gemm(512, 4096, 6144): 32,
        Gemm(512, 4096, 4096): 32,
        Gemm(512, 4096, 28672): 32,
        Gemm(512, 14336, 4096): 32,
        Gemm(1, 4096, 128256): 1,
    }


def test_ranks_share_heads_and_widths():
    found = step_operations(shape_of(LLAMA_70B), 4, 128, 128)
    assert found[Gemm(128, 8192, (16 + 2 * 2) * 128)] == 80
    assert found[Gemm(128, 7168, 8192)] == 80 and found[Gemm(1, 8192, 32064)] == 1
    assert found[Attention(1, 128, 128, 16, 2, 128, 128)] == 80
    assert found[AllReduce(128 * 8192 * 2)] == 160
    more = step_operations(shape_of(LLAMA_70B), 16, 128, 128)
    assert Attention(1, 128, 128, 4, 1, 128, 128) in more, "a rank has at least one head of keys"


@pytest.mark.parametrize(
    ("config", "billions", "kv_bytes"),
    [
        (LLAMA_8B, 8.030, 131_072),
        (LLAMA_70B, 70.554, 327_680),
        (QWEN3_32B, 32.762, 262_144),
        (QWEN3_30B_A3B, 30.532, 98_304),
        (MIXTRAL, 46.703, 131_072),
        (DEEPSEEK_V2_LITE, 15.706, 31_104),
        (DEEPSEEK_V3, 671.0, 70_272),
    ],
    ids=["8B", "70B", "Qwen3-32B", "Qwen3-30B-A3B", "Mixtral-8x7B", "DeepSeek-V2-Lite", "DeepSeek-V3"],
)
def test_a_large_decode_batch_reads_all_weights_and_its_cache(config, billions, kv_bytes):
    """The model's weights but for the embedding; latent attention reads absorbed matrices, which are as large."""
    found = step_operations(shape_of(config), 1, 1, 2_000, 512)
    read = sum(count * weights(one) for one, count in found.items() if isinstance(one, Gemm))
    cache = sum(count * cached(one) for one, count in found.items() if isinstance(one, Attention))
    assert read + config["vocab_size"] * config["hidden_size"] == pytest.approx(billions * 1e9, rel=0.005)
    assert 2 * cache == 512 * 2_000 * kv_bytes


def test_one_token_reads_the_experts_it_uses():
    found = gemms(MIXTRAL, 1, 100)
    assert found[Gemm(1, 4096, 8)] == 32
    assert found[Gemm(1, 4096, 28672, 2)] == 32 and found[Gemm(1, 14336, 4096, 2)] == 32


def test_experts_share_the_tokens_of_a_prompt():
    found = gemms(QWEN3_30B_A3B, 4_096, 4_096)
    assert found[Gemm(256, 2048, 1536, 128)] == 48 and found[Gemm(256, 768, 2048, 128)] == 48


def test_shared_experts_and_the_dense_layer_are_products_of_their_own():
    found = gemms(DEEPSEEK_V2_LITE, 64, 64)
    assert found[Gemm(64, 2048, 2 * 10944)] == 1
    assert found[Gemm(64, 2048, 2 * 2816)] == 26


def test_latent_attention_expands_prompts_and_absorbs_decodes():
    prompt = step_operations(shape_of(DEEPSEEK_V2_LITE), 1, 512, 4_608)
    assert prompt[Attention(1, 512, 4_608, 16, 16, 192, 128)] == 27
    assert prompt[Gemm(4_608, 512, 16 * 256)] == 27, "the cached latents are expanded too"
    decode = step_operations(shape_of(DEEPSEEK_V2_LITE), 1, 1, 2_048, 32)
    latent = Attention(32, 1, 2_048, 16, 1, 576, 512, shared=True)
    assert decode[latent] == 27 and cached(latent) == 32 * 2_048 * 576
    assert decode[Gemm(32, 128, 512, 16)] == 27 and decode[Gemm(32, 512, 128, 16)] == 27
    assert gemms(DEEPSEEK_V3, 1, 1)[Gemm(1, 7168, 1536)] == 61


def made_up_gpu(operation):
    """Return ms: 600 TFLOP/s and 2.5 TB/s, or both one after the other for what is small."""
    match operation:
        case Gemm(rows, inner, columns, groups):
            return rows * inner * columns * groups * 2 / 6e11 + 2 * weights(operation) / 2.5e9
        case Attention(sequences, new, context, heads, _, key, value):
            pairs = sequences * new * (context - (new - 1) / 2)
            return 2 * pairs * heads * (key + value) / 4e11 + 2 * cached(operation) / 2.5e9
        case Elementwise(moved_bytes):
            return 0.003 + moved_bytes / 2.5e9
    raise AssertionError(operation)


@pytest.mark.parametrize("config", [LLAMA_8B, MIXTRAL, DEEPSEEK_V2_LITE], ids=["dense", "experts", "latent"])
@pytest.mark.parametrize("seed", range(3))
def test_times_of_operations_with_noise_give_steps_within_a_few_percent(config, seed):
    shape, rng = shape_of(config), random.Random(seed)

    def noisy(operation):
        return made_up_gpu(operation) * rng.uniform(0.95, 1.05)

    curve = shape.experts is not None
    fitted = fit_costs(list(compose(shape, Ranks(), GPU_GRID, noisy, ROOM)), by_batch=curve)
    held_out = replace(GPU_GRID, prompts=((1_500, 0), (6_000, 0), (3_000, 16_000)), batches=(24, 48), contexts=(4_096,))
    limits = {Kind.PREFILL: 0.10, Kind.DECODE: 0.08 if curve else 0.05}  # a curve has lines between its points
    for one in compose(shape, Ranks(), held_out, made_up_gpu, ROOM):
        assert step_ms(one, fitted.prefill, fitted.decode) == pytest.approx(one.ms, rel=limits[one.kind]), one.what


def test_each_operation_is_timed_once():
    asked = []

    def timed(operation):
        asked.append(operation)
        return 1.0

    list(compose(shape_of(LLAMA_8B), Ranks(), GPU_GRID, timed, ROOM))
    assert len(asked) == len(set(asked)) < 150


def test_steps_beyond_the_cache_are_left_out():
    few = list(compose(shape_of(LLAMA_8B), Ranks(), GPU_GRID, made_up_gpu, 20_000))
    assert max(one.context_tokens for one in few) == 16 * 512 * 2
    assert "8,192 new tokens, 8,192 cached" in {one.what for one in few}


def test_exchanged_results_cost_the_ring():
    """Two of 16 MiB per layer: each rank sends and receives half of it at 400 GB/s."""
    ranks = Ranks(2, 400.0)
    assert ranks.reduce_ms(AllReduce(1 << 24)) == pytest.approx(0.01 + (1 << 24) / 4e8)
    alone, both = (
        next(iter(compose(shape_of(LLAMA_8B), one, GPU_GRID, lambda operation: 0.0, ROOM))).ms
        for one in (Ranks(), ranks)
    )
    assert (alone, both) == (0.0, pytest.approx(64 * ranks.reduce_ms(AllReduce(128 * 4096 * 2))))
