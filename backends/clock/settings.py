"""The plug-in's options: environment variables, because vLLM passes no other options to a platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.engine.profile import UnknownProfile, load_profile

SWITCH = "WARMROUTE_CLOCK"
_PREFIX = SWITCH + "_"


class ClockMisconfigured(ValueError):
    """A variable cannot be used; the message names it and the fix."""


@dataclass(frozen=True, slots=True)
class ClockSettings:
    """One vLLM engine's modelled GPU.

    `profile` names the step times (`backends/engine/profiles`). `kv_gib` is the modelled KV cache, in GiB of the served
    model's own KV layout; None: the profile's tokens. `time_scale` stretches every wait (0 = no waiting), `speed`
    divides the modelled step time, and `jitter` spreads it. `stop_probability` is the chance that the model ends its
    answer after any one token, for requests without ``ignore_eos``; `character_share` is the chance that it goes on
    with an emoji or a Chinese character of several tokens.
    """

    profile: str = "llama-3.1-8b-h100"
    kv_gib: float | None = None
    time_scale: float = 1.0
    speed: float = 1.0
    jitter: float = 0.0
    stop_probability: float = 0.0
    seed: int = 0
    character_share: float = 0.0

    def environment(self) -> dict[str, str]:
        values = {name: getattr(self, name) for name in _READERS if getattr(self, name) is not None}
        return {SWITCH: "1", **{_PREFIX + name.upper(): str(value) for name, value in values.items()}}


def read_settings(environ: Mapping[str, str]) -> ClockSettings:
    """Read ``WARMROUTE_CLOCK_*``.

    Raises:
        ClockMisconfigured: a value cannot be used or a variable does not exist.
    """
    given = {name.removeprefix(_PREFIX).lower(): text for name, text in environ.items() if name.startswith(_PREFIX)}
    unknown = sorted(given.keys() - _READERS.keys())
    if unknown:
        known = ", ".join(sorted(clock_variables()))
        raise ClockMisconfigured(f"{_PREFIX}{unknown[0].upper()} is not a setting; the settings are {known}")
    return ClockSettings(**{name: _read(name, text) for name, text in given.items()})


def clock_variables() -> set[str]:
    return {_PREFIX + name.upper() for name in _READERS}


def _read(name: str, text: str) -> Any:
    try:
        return _READERS[name](text)
    except ValueError as error:
        raise ClockMisconfigured(f"{_PREFIX}{name.upper()}={text}: {error}") from error


def _number(allowed: Callable[[float], bool], wanted: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not allowed(value):
            raise ValueError(f"write {wanted}")
        return value

    return read


def _profile(text: str) -> str:
    try:
        return load_profile(text).name
    except UnknownProfile as error:
        raise ValueError(str(error)) from error


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("write a whole number") from None


_INFINITE = float("inf")
_READERS: dict[str, Callable[[str], object]] = {
    "profile": _profile,
    "kv_gib": _number(lambda value: 0 < value < _INFINITE, "a number of GiB above 0"),
    "time_scale": _number(lambda value: 0 <= value < _INFINITE, "a number of at least 0"),
    "speed": _number(lambda value: 0 < value < _INFINITE, "a number above 0"),
    "jitter": _number(lambda value: 0 <= value < 1, "a share of at least 0 and below 1"),
    "stop_probability": _number(lambda value: 0 <= value <= 1, "a share from 0 to 1"),
    "character_share": _number(lambda value: 0 <= value <= 1, "a share from 0 to 1"),
    "seed": _seed,
}
