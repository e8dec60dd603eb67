"""The shape of a decoder from its config.json: dense, grouped-query, mixture of experts, latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtest.calibrate.readings import CalibrationError

BYTES = 2
"""Of a number: bf16."""


@dataclass(frozen=True, slots=True)
class Experts:
    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int

    def touched(self, tokens: int) -> float:
        """Return the expected number of experts that `tokens` use, if each token draws its own at random."""
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2): one latent per token is cached for all heads. `query_rank` is 0 where
    queries come from the hidden state at once."""

    query_rank: int
    rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`dense_layers` have one MLP of `intermediate`, the others `experts`."""

    hidden: int
    layers: int
    dense_layers: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    vocabulary: int
    experts: Experts | None = None
    latent: Latent | None = None


def read_shape(path: Path) -> ModelShape:
    """Read a config.json, or that of a model's folder.

    Raises:
        CalibrationError: it cannot be read, or is of another kind of model.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise CalibrationError(f"{file}: {error}") from error
    try:
        return shape_of(config.get("text_config") or config)
    except (KeyError, TypeError, ValueError) as error:
        raise CalibrationError(f"{file} is not the config of a decoder that is known here: {error!r}") from error


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Read the members of Llama's, Mixtral's, Qwen's and DeepSeek's configs.

    Raises:
        KeyError, TypeError, ValueError: one is missing, or layers have another attention.
    """
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if kinds or (config.get("sliding_window") and config.get("use_sliding_window", True)):
        raise ValueError(f"layers of {', '.join(sorted(kinds)) or 'sliding windows'} are not timed")
    layers, heads, hidden = (int(config[name]) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    experts = _experts(config)
    return ModelShape(
        hidden=hidden,
        layers=layers,
        dense_layers=layers if experts is None else _dense_layers(config, layers),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head=int(config.get("head_dim") or hidden // heads),
        intermediate=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        experts=experts,
        latent=_latent(config),
    )


def _experts(config: Mapping[str, Any]) -> Experts | None:
    count = config.get("num_local_experts") or config.get("n_routed_experts") or config.get("num_experts")
    if not count:
        return None
    width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    shared = int(config.get("shared_expert_intermediate_size") or width * (config.get("n_shared_experts") or 0))
    return Experts(int(count), int(config["num_experts_per_tok"]), width, shared)


def _dense_layers(config: Mapping[str, Any], layers: int) -> int:
    """Return the layers without experts: the first ones (DeepSeek), and all but every n-th or the named ones (Qwen)."""
    first = int(config.get("first_k_dense_replace") or 0)
    every = int(config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1)
    named = set(config.get("mlp_only_layers") or ())
    if config.get("decoder_sparse_step"):
        return sum((layer + 1) % every != 0 or layer in named for layer in range(layers))
    return sum(layer < first or layer % every != 0 or layer in named for layer in range(layers))


def _latent(config: Mapping[str, Any]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    ranks = int(config.get("q_lora_rank") or 0), int(config["kv_lora_rank"])
    return Latent(*ranks, *(int(config[name]) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")))
