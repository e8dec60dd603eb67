from dataclasses import replace

import pytest

from backends.engine.profile import load_profile
from backends.simulated.capacity import kv_bytes_per_token, read_capacity
from backends.simulated.settings import WorkerSettings

PROFILE = load_profile("llama-3.1-8b-h100")
LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def test_a_token_of_llama_8b_is_128_kib():
    assert kv_bytes_per_token(LLAMA_8B) == 131_072
    assert kv_bytes_per_token({**LLAMA_8B, "head_dim": 64}) == 65_536
    without_groups = {**LLAMA_8B, "num_key_value_heads": None}
    assert kv_bytes_per_token(without_groups) == 4 * 131_072


def test_a_shape_without_a_kv_layout_is_refused():
    with pytest.raises(ValueError, match=r"num_hidden_layers.*set blocks instead"):
        kv_bytes_per_token({"num_attention_heads": 8, "head_dim": 64})


def test_the_cache_in_gib_of_the_shipped_model():
    # two layers, two heads of 64: 1,024 bytes a token, 16 KiB a block
    capacity = read_capacity(WorkerSettings(kv_gib=0.0625), PROFILE)
    assert capacity.num_blocks == 4_096 and capacity.max_model_len == 4_095 * 16
    assert read_capacity(WorkerSettings(kv_gib=0.0625, num_blocks=100), PROFILE).num_blocks == 100
    assert read_capacity(replace(WorkerSettings(), kv_gib=None), PROFILE).num_blocks == PROFILE.num_blocks
    with pytest.raises(ValueError, match="less than two blocks"):
        read_capacity(WorkerSettings(kv_gib=1e-5), PROFILE)
