"""Shapes against the numbers that the models' authors state."""

import json

import pytest

from loadtest.calibrate.kernels.shape import read_shape, shape_of
from loadtest.calibrate.readings import CalibrationError

LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "vocab_size": 128256,
}  # fmt: skip
LLAMA_70B = {
    **LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
}  # fmt: skip
QWEN3_32B = {
    "hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 64, "vocab_size": 151936,
    "use_sliding_window": False, "sliding_window": None,
}  # fmt: skip
QWEN3_30B_A3B = {
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48, "vocab_size": 151936,
}  # fmt: skip
MIXTRAL = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "sliding_window": None,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 27, "kv_lora_rank": 512,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
DEEPSEEK_V3 = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip


def test_only_the_layers_with_experts_have_them():
    assert (shape_of(MIXTRAL).dense_layers, shape_of(LLAMA_8B).dense_layers) == (0, 32)
    assert (shape_of(DEEPSEEK_V2_LITE).dense_layers, shape_of(DEEPSEEK_V3).dense_layers) == (1, 3)
    assert shape_of({**QWEN3_30B_A3B, "decoder_sparse_step": 2, "mlp_only_layers": [1]}).dense_layers == 25


def test_touched_experts_grow_to_all():
    experts = shape_of(QWEN3_30B_A3B).experts
    assert experts.touched(1) == pytest.approx(8.0)
    assert experts.touched(32) == pytest.approx(128 * (1 - (120 / 128) ** 32))
    assert experts.touched(4_096) == pytest.approx(128.0)


def test_a_folder_and_a_text_config_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": LLAMA_8B}))
    assert read_shape(tmp_path) == read_shape(tmp_path / "config.json") == shape_of(LLAMA_8B)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "config.json"),
        ("[]", "config.json"),
        ('{"hidden_size": 8}', "num_hidden_layers"),
        (json.dumps({**LLAMA_8B, "sliding_window": 4096}), "sliding windows are not timed"),
        (json.dumps({**LLAMA_8B, "layer_types": ["full_attention", "linear_attention"]}), "linear_attention are not"),
        (json.dumps({**LLAMA_8B, "hidden_size": None}), "not the config"),
    ],
)
def test_another_file_is_refused(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CalibrationError, match=words):
        read_shape(tmp_path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CalibrationError, match=r"config\.json"):
        read_shape(tmp_path)
