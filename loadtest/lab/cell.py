"""The configuration of one run, and the digest under which its result is stored."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import inf
from pathlib import Path

import msgspec

from loadtest.lab.models import Models
from loadtest.lab.policies import parse_policy
from loadtest.sim.handover import HandoverSetting
from loadtest.workload.source import GENERATOR
from policies.registry import rule_class
from router.placement.admission.classes import RequestClass

_WHAT_DECIDES = (
    "backends",
    "router.config",
    "router.placement",
    "router.residency",
    "loadtest.sim",
    "loadtest.workload",
    "loadtest.lab",
    "loadtest.report",
)
"""Packages whose code can change what a cell measures. Of `policies`, other rules do not count."""
_RULES = ("rules", "marginal_cost")
"""Where `policies` has its rules."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """`workers` of one profile; each seed draws their speeds."""

    workers: int
    profile: str


@dataclass(frozen=True, slots=True)
class Slo:
    """The service level: limits of a call's TTFT, of its mean time per token, and of its whole answer."""

    ttft_ms: float = inf
    tpot_ms: float = inf
    e2e_ms: float = inf


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all cells of a sweep share. With `handover` the workers have roles.

    With `classes` calls wait in the gateway. A call's class is that of its session: the one with the name of its first
    call's kind, else `default`, else the first. A class's own service level counts for its calls in place of `slo`.
    """

    fleet: Fleet
    slo: Slo
    models: Models
    window_s: float
    handover: HandoverSetting | None = None
    classes: tuple[RequestClass, ...] = ()


def slos_of(classes: Iterable[RequestClass]) -> dict[str, Slo]:
    """Return the service levels of the classes that have one."""
    return {
        one.name: Slo(_ms(one.ttft_s), _ms(one.tpot_s))
        for one in classes
        if one.ttft_s is not None or one.tpot_s is not None
    }


def _ms(limit_s: float | None) -> float:
    return inf if limit_s is None else limit_s * 1e3


@dataclass(frozen=True, slots=True)
class Cell:
    """The configuration of one run. Sessions arrive `rate` times as fast as in the trace.

    `load` is this rate as a fraction of saturation; None during the search for saturation.
    """

    trace: str
    policy: str
    rate: float
    seed: int
    setting: Setting
    load: float | None = None

    def at(self, rate: float) -> Cell:
        return replace(self, rate=rate)


def digest(cell: Cell) -> str:
    """Return the digest of everything that a result depends on: settings, code, the rule, and the contents of the trace
    and of a profile in a file.

    The load is left out: the rate already says how fast sessions arrive.
    """
    said = asdict(cell)
    del said["load"]
    said["code"] = code_version()
    said["contents"] = "" if cell.trace.startswith(GENERATOR) else _contents(cell.trace)
    if cell.setting.fleet.profile.endswith(".toml"):
        said["profile"] = _contents(cell.setting.fleet.profile)
    said["rule"] = _rule(cell.policy)
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:24]


@cache
def code_version() -> str:
    """Return a digest of the code that cells depend on."""
    return _digest([file for package in _WHAT_DECIDES for file in _sources(files(package))])


@cache
def _rule(policy: str) -> str:
    """Return a digest of the code of a rule, and of what `policies` has for all rules."""
    ours = files("policies")
    shared = [file for entry in _entries(ours) if entry.name not in _RULES for file in _sources(entry)]
    return _digest([*shared, ours / "rules" / "rule.py", *_own(rule_class(parse_policy(policy).rule))])


def _own(kind: type) -> list[Traversable]:
    """Return the file of a rule; for one that is a package, or a third party's in a package, all files of that."""
    try:
        file = Path(inspect.getfile(kind))
    except (OSError, TypeError):  # a class made at run time has no file that could change
        return []
    alone = kind.__module__.startswith("policies.rules.") or not ("." in kind.__module__ or file.name == "__init__.py")
    return [file] if alone else _sources(file.parent)


def _digest(sources: Iterable[Traversable]) -> str:
    total = hashlib.sha256()
    for file in sources:
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:12]


def _entries(folder: Traversable) -> list[Traversable]:
    return sorted(folder.iterdir(), key=lambda entry: entry.name)


def _sources(place: Traversable) -> list[Traversable]:
    """Return the modules and profiles of a folder at any depth, in a fixed order; a file alone."""
    if place.is_dir():
        return [file for entry in _entries(place) for file in _sources(entry)]
    return [place] if place.name.endswith((".py", ".toml")) else []


@cache
def _contents(path: str) -> str:
    """Return a digest of a file. A generator and a packaged profile have none: their code is in the code digest."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
