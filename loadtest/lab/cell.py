"""The configuration of one run, and the digest under which its result is stored."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from loadtest.lab.models import Models
from loadtest.lab.policies import parse_policy
from loadtest.sim.handover import HandoverSetting
from loadtest.workload.source import GENERATOR
from policies.registry import hold_of, lanes_of, rule_class
from policies.wrappers.hold import AdmissionHold
from policies.wrappers.prefill_lanes import PrefillLanes

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
"""Packages whose code can change what a cell measures. Of `policies`, the rule's own modules count, too."""
_PRICES = "policies.handover_cost"
"""The module whose prices decide between one worker and two, whatever the rule."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """`workers` of one profile; each seed draws their speeds."""

    workers: int
    profile: str


@dataclass(frozen=True, slots=True)
class Slo:
    """The service level. A call meets it if its TTFT is at most `ttft_ms` and its mean time per token `tpot_ms`."""

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all cells of a sweep share. With `handover` the workers have roles."""

    fleet: Fleet
    slo: Slo
    models: Models
    window_s: float
    handover: HandoverSetting | None = None


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
    """Return the digest of everything that a result depends on: settings, code, the rule and the trace's contents.

    The load is left out: the rate already says how fast sessions arrive.
    """
    said = asdict(cell)
    del said["load"]
    said["code"] = code_version()
    said["contents"] = _contents(cell.trace)
    said["rule"] = _rule(cell.policy)
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:24]


@cache
def code_version() -> str:
    """Return a digest of the code that cells depend on."""
    return _digest([_module(_PRICES), *[file for package in _WHAT_DECIDES for file in _sources(files(package))]])


@cache
def _rule(policy: str) -> str:
    """Return a digest of the code of a rule, its wrappers and their imports from `policies`; for a third-party rule, of
    all `policies`.
    """
    spec = parse_policy(policy)
    kind = rule_class(spec.rule)
    if not kind.__module__.startswith("policies."):
        return _digest([*_sources(files("policies")), *_foreign(kind)])
    hold, lanes = hold_of(spec), lanes_of(spec)
    around = [wrapper for wrapper, params in ((AdmissionHold, hold), (PrefillLanes, lanes)) if params is not None]
    modules = set().union(*[_imported(one.__module__) for one in (kind, *around)])
    return _digest([_module(module) for module in sorted(modules)])


def _foreign(kind: type) -> list[Traversable]:
    """Return the file of a third-party rule, or all files of its package."""
    try:
        file = Path(inspect.getfile(kind))
    except (OSError, TypeError):  # a class made at run time has no file that could change
        return []
    packed = "." in kind.__module__ or file.name == "__init__.py"
    return _sources(file.parent) if packed else [file]


def _imported(module: str) -> set[str]:
    """Return the module and all modules of `policies` that it imports, directly or not."""
    found, waiting = {module}, [module]
    while waiting:
        tree = ast.parse(_module(waiting.pop()).read_bytes())
        named = [name for node in ast.walk(tree) for name in _named(node) if name.startswith("policies.")]
        waiting.extend(set(named) - found)
        found.update(named)
    return found


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)


def _module(name: str) -> Traversable:
    package, _, stem = name.rpartition(".")
    folder = files(package) / stem
    return folder / "__init__.py" if folder.is_dir() else files(package) / f"{stem}.py"


def _digest(sources: Iterable[Traversable]) -> str:
    total = hashlib.sha256()
    for file in sources:
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:12]


def _sources(folder: Traversable) -> list[Traversable]:
    """Return the modules and profiles of a folder, at any depth, in a fixed order."""
    found: list[Traversable] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found.extend(_sources(entry))
        elif entry.name.endswith((".py", ".toml")):
            found.append(entry)
    return found


@cache
def _contents(trace: str) -> str:
    """Return a digest of a trace's file; empty for a generator, whose code is in the code digest."""
    return "" if trace.startswith(GENERATOR) else hashlib.sha256(Path(trace).read_bytes()).hexdigest()
