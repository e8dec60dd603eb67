"""How much one worker's cache holds, and how long a request may therefore be."""

from __future__ import annotations

import json
from dataclasses import dataclass

from backends.engine.profile import Profile
from backends.simulated.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Capacity:
    """`num_blocks` counts as vLLM's ``num_gpu_blocks``: one of them is never given out."""

    num_blocks: int
    block_size: int
    max_model_len: int

    def cache_config(self) -> dict[str, str]:
        """Labels of ``vllm:cache_config_info``, "engine" left out."""
        tokens = self.num_blocks * self.block_size
        return {
            "block_size": str(self.block_size),
            "num_gpu_blocks": str(self.num_blocks),
            "enable_prefix_caching": "True",
            "prefix_caching_hash_algo": "sha256",
            "kv_cache_size_tokens": str(tokens),
            "kv_cache_max_concurrency": f"{tokens / self.max_model_len:.2f}",
            "hash_block_size": str(self.block_size),
        }


def read_capacity(settings: WorkerSettings, profile: Profile) -> Capacity:
    """From the settings, the profile and the model folder's config.json, in this order.

    The model length is cut to what the cache holds, since a longer request could never run.
    """
    num_blocks = settings.num_blocks or profile.num_blocks
    holds_tokens = (num_blocks - 1) * profile.block_size
    wanted = settings.max_model_len
    if wanted is None:
        shape = json.loads((settings.folder / "config.json").read_text(encoding="utf-8"))
        wanted = int(shape.get("max_position_embeddings", holds_tokens))
    return Capacity(num_blocks, profile.block_size, max(1, min(wanted, holds_tokens)))
