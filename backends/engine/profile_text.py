"""A profile as the text of its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields

from backends.engine.profile import Fingerprint, Profile


def profile_text(profile: Profile) -> str:
    """Return TOML that `backends.engine.profile.load_profile` reads. What is unknown is named in a comment."""
    return "\n".join(_lines(profile)) + "\n"


def _lines(profile: Profile) -> Iterator[str]:
    for name in ("model", "hardware"):
        yield f"{name} = {_value(getattr(profile, name))}"
    provenance = profile.provenance.replace("\\", "\\\\").replace('"', '\\"')
    yield f'provenance = """\n{provenance}\n"""'
    for name in ("kv_tokens", "block_size", "max_num_batched_tokens", "max_num_seqs"):
        yield f"{name} = {getattr(profile, name)}"
    for name in ("prefill", "decode"):
        cost = getattr(profile, name)
        yield f"\n[{name}]"
        values = {field.name: getattr(cost, field.name) for field in fields(cost)}
        yield from (f"{key} = {_cost(value)}" for key, value in values.items() if value != ())
    if profile.fingerprint is not None:
        yield from _fingerprint(profile.fingerprint)


def _fingerprint(fingerprint: Fingerprint) -> Iterator[str]:
    yield "\n[fingerprint]"
    known = {field.name: getattr(fingerprint, field.name) for field in fields(fingerprint)}
    yield from (f"{name} = {_value(value)}" for name, value in known.items() if value is not None)
    if unknown := fingerprint.unknown():
        yield f"# not known: {', '.join(unknown)}"


def _cost(value: float | tuple[tuple[int, float], ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(f'[{batch}, {_cost(ms)}]' for batch, ms in value)}]"
    return repr(float(f"{value:.4g}"))


def _value(value: object) -> str:
    """JSON's form of strings, numbers and truth values is TOML's too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
