"""Timing and cache profiles: the cost of steps of a model on given GPUs."""

from __future__ import annotations

import tomllib
from bisect import bisect_left
from dataclasses import dataclass, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Cost = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


class UnknownProfile(ValueError):
    """No profile has this name, or the file holds none; the message lists the names, or says what is wrong."""


class OtherFingerprint(ValueError):
    """The profile was made on something else; the message names the fields that differ."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """``a_ms + b_us * n / 1e3 + d_ns * n * (c + n / 2) / 1e6`` ms for n new tokens after c cached ones."""

    a_ms: _Cost
    b_us: _Cost
    d_ns: _Cost

    def scaled(self, factor: float, fixed_ms: float = 0.0) -> PrefillCost:
        """Return each cost times `factor`, and `fixed_ms` more per step."""
        return PrefillCost(self.a_ms * factor + fixed_ms, self.b_us * factor, self.d_ns * factor)


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """``a_ms + b_ms * B + k_ns * S / 1e6`` ms for B running decodes with S context tokens together.

    A mixture of experts reads more experts for a larger batch, in a curve. Its `by_batch` has ascending points (B, ms)
    in place of ``a_ms + b_ms * B``: a line from each point to the next, and `b_ms` per decode beyond the last.
    """

    a_ms: _Cost
    b_ms: _Cost
    k_ns: _Cost
    by_batch: tuple[tuple[_Count, _Cost], ...] = ()

    def __post_init__(self) -> None:
        batches = [batch for batch, _ in self.by_batch]
        if batches != sorted(set(batches)):
            raise ValueError("the batches of by_batch have to ascend")

    def fixed_ms(self, decodes: int) -> float:
        """Return the part of a step that does not depend on the context."""
        if not self.by_batch:
            return self.a_ms + self.b_ms * decodes
        at = bisect_left(self.by_batch, (decodes, 0.0))
        if at == len(self.by_batch):
            batch, ms = self.by_batch[-1]
            return ms + self.b_ms * (decodes - batch)
        batch, ms = self.by_batch[at]
        if at == 0:
            return ms
        before, before_ms = self.by_batch[at - 1]
        return before_ms + (ms - before_ms) * (decodes - before) / (batch - before)

    def scaled(self, factor: float, fixed_ms: float = 0.0) -> DecodeCost:
        """Return each cost times `factor`, and `fixed_ms` more per step."""
        points = tuple((batch, ms * factor + fixed_ms) for batch, ms in self.by_batch)
        return DecodeCost(self.a_ms * factor + fixed_ms, self.b_ms * factor, self.k_ns * factor, points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a calibration ran on; None for what it could not know.

    The batch limits and the block size stand here as they were then; those of `Profile` may be changed.
    """

    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    engine: str | None = None
    torch: str | None = None
    model: str | None = None
    model_revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    expert_parallel: bool | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    date: str | None = None

    def unknown(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) is None]


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one worker's GPUs. `kv_tokens` is the size of the worker's KV cache; `provenance` gives the source
    of the constants and their error."""

    name: str
    model: str
    hardware: str
    provenance: str
    kv_tokens: _Count
    block_size: _Count
    max_num_batched_tokens: _Count
    max_num_seqs: _Count
    prefill: PrefillCost
    decode: DecodeCost
    fingerprint: Fingerprint | None = None

    @property
    def num_blocks(self) -> int:
        return self.kv_tokens // self.block_size


def load_profile(name: str) -> Profile:
    """Read a packaged profile, or the one in a ``.toml`` file at this path.

    Raises:
        UnknownProfile: the message lists the profiles, or says what is wrong in the file.
    """
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return _read(name, path)
    if name not in profile_names():
        raise UnknownProfile(
            f"no profile {name!r}; write one of {', '.join(profile_names())}, or the path of a .toml file"
        )
    return _read(name, _folder() / f"{name}.toml")


def check_fingerprint(profile: Profile, seen: Fingerprint) -> list[str]:
    """Compare `profile` with what was `seen`; return the fields that one of both does not know. The date may differ.

    Raises:
        OtherFingerprint: a field that both know differs, or the profile has no fingerprint.
    """
    if profile.fingerprint is None:
        raise OtherFingerprint(f"{profile.name} has no fingerprint: it was not made by a calibration")
    names = [field.name for field in fields(seen) if field.name != "date"]
    pairs = {name: (getattr(profile.fingerprint, name), getattr(seen, name)) for name in names}
    differ = [
        f"{name} is {was} in the profile, {now} here"
        for name, (was, now) in pairs.items()
        if None not in (was, now) and was != now
    ]
    if differ:
        raise OtherFingerprint(f"{profile.name} is the profile of something else: {'; '.join(differ)}")
    return [name for name, pair in pairs.items() if None in pair]


def _read(name: str, source: Path | Traversable) -> Profile:
    try:
        return msgspec.convert({"name": name, **tomllib.loads(source.read_text(encoding="utf-8"))}, Profile)
    except (OSError, ValueError) as error:
        raise UnknownProfile(f"{name} is no profile: {error}") from error


def profile_names() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def _folder() -> Traversable:
    return files("backends.engine") / "profiles"
