"""Timing and cache profiles: the cost of steps of a model on given GPUs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec


class UnknownProfile(ValueError):
    """No profile has this name; the message lists the names."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """``a_ms + b_us * n / 1e3 + d_ns * n * (c + n / 2) / 1e6`` ms for n new tokens after c cached ones."""

    a_ms: float
    b_us: float
    d_ns: float


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """``a_ms + b_ms * B + k_ns * S / 1e6`` ms for B running decodes with S context tokens together."""

    a_ms: float
    b_ms: float
    k_ns: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one worker's GPUs. `kv_tokens` is the size of the worker's KV cache; `provenance` gives the source
    of the constants and their error."""

    name: str
    model: str
    hardware: str
    provenance: str
    kv_tokens: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    prefill: PrefillCost
    decode: DecodeCost

    @property
    def num_blocks(self) -> int:
        return self.kv_tokens // self.block_size


def load_profile(name: str) -> Profile:
    """Read a packaged profile.

    Raises:
        UnknownProfile: the message lists the profiles.
    """
    if name not in profile_names():
        raise UnknownProfile(f"no profile {name!r}; write one of {', '.join(profile_names())}")
    text = (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.convert({"name": name, **tomllib.loads(text)}, Profile)


def profile_names() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def _folder() -> Traversable:
    return files("backends.engine") / "profiles"
