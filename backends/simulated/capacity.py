from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.engine.profile import Profile
from backends.simulated.settings import WorkerSettings

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Capacity:
    """`num_blocks` counts as vLLM's ``num_gpu_blocks``: one of them is never allocated."""

    num_blocks: int
    block_size: int
    max_model_len: int

    def cache_config(self) -> dict[str, str]:
        """Return the labels of ``vllm:cache_config_info``, without "engine"."""
        tokens = self.num_blocks * self.block_size
        return {
            "block_size": str(self.block_size),
            "num_gpu_blocks": str(self.num_blocks),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "prefix_caching_hash_algo": "sha256",
            "kv_cache_size_tokens": str(tokens),
            "kv_cache_max_concurrency": f"{tokens / self.max_model_len:.2f}",
            "hash_block_size": str(self.block_size),
        }


def read_capacity(settings: WorkerSettings, profile: Profile) -> Capacity:
    """Read the capacity from the settings, the profile and the model folder's config.json, in this order.

    The model length is limited to the cache's size, since a longer request could never run.

    Raises:
        ValueError: a cache size in GiB holds less than two blocks, or the model does not give its layout.
    """
    shape = json.loads((settings.folder / "config.json").read_text(encoding="utf-8"))
    num_blocks = settings.num_blocks or profile.num_blocks
    if settings.kv_gib is not None and settings.num_blocks is None:
        num_blocks = int(settings.kv_gib * _GIB / (kv_bytes_per_token(shape) * profile.block_size))
        if num_blocks < 2:
            raise ValueError(f"{settings.kv_gib:g} GiB of KV cache hold less than two blocks of this model")
    holds_tokens = (num_blocks - 1) * profile.block_size
    wanted = settings.max_model_len
    if wanted is None:
        wanted = int(shape.get("max_position_embeddings", holds_tokens))
    return Capacity(num_blocks, profile.block_size, max(1, min(wanted, holds_tokens)))


def kv_bytes_per_token(shape: Mapping[str, Any]) -> int:
    """Return the bytes of one token's keys and values over all layers, from a model's config.json at bf16.

    Raises:
        ValueError: the shape does not name layers and heads as Llama's does.
    """
    try:
        query_heads = int(shape["num_attention_heads"])
        heads = int(shape.get("num_key_value_heads") or query_heads)
        head_size = int(shape.get("head_dim") or shape["hidden_size"] // query_heads)
        return 2 * 2 * int(shape["num_hidden_layers"]) * heads * head_size
    except (KeyError, TypeError) as error:
        raise ValueError(f"the model's config.json does not say its KV layout ({error}); set blocks instead") from error
