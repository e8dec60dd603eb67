"""Flags of ``warmroute serve``, ``check`` and ``config`` for settings, and the tree of the flags given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.config.problems import Problem, closest
from router.config.schema import settings, type_at
from router.config.sources.text import from_text
from router.config.tree import Located, insert, located


@dataclass(frozen=True, slots=True)
class Flag:
    """A command line option and its setting."""

    option: str
    path: tuple[str, ...]
    metavar: str
    group: str
    help: str = ""
    """Help text of the flag, where the setting's description does not fit."""


FLAGS = (
    Flag(
        "--worker",
        ("workers",),
        "URL",
        "fleet",
        "a vLLM endpoint, http://HOST:PORT (repeatable); replaces the file's workers",
    ),
    Flag("--host", ("host",), "ADDRESS", "listening"),
    Flag("--port", ("port",), "PORT", "listening"),
    Flag("--uds", ("uds",), "PATH", "listening"),
    Flag("--admin-host", ("admin_host",), "ADDRESS", "listening"),
    Flag("--admin-port", ("admin_port",), "PORT", "listening"),
    Flag("--takeover", ("takeover",), "PATH", "listening"),
    Flag(
        "--processes",
        ("processes",),
        "N",
        "listening",
        "processes that share the public port, each on a core of its own; auto: as many as cores",
    ),
    Flag("--policy", ("policy", "rule"), "RULE", "choosing a worker"),
    Flag(
        "--policy-param",
        ("policy", "params"),
        "KEY=VALUE",
        "choosing a worker",
        "a parameter of the rule (repeatable)",
    ),
    Flag(
        "--hold",
        ("policy", "hold"),
        "",
        "choosing a worker",
        "hold long prompts until prefills end or a KV cache has space (default: with marginal_cost only)",
    ),
    Flag(
        "--lanes",
        ("policy", "lanes"),
        "",
        "choosing a worker",
        "keep workers for long prefills while that saves delay (default: with marginal_cost only)",
    ),
    Flag("--model-dir", ("model_dir",), "DIR", "prompts"),
    Flag("--tokenizer", ("tokenizer",), "PATH", "prompts"),
    Flag("--watch", ("watch",), "", "control"),
    Flag("--state-dir", ("state_dir",), "DIR", "control"),
    Flag("--log-level", ("log_level",), "LEVEL", "logs"),
    Flag("--log-format", ("log_format",), "FORMAT", "logs"),
    Flag("--access-log", ("access_log",), "", "logs"),
)
"""Options with a name of their own; ``--set KEY=VALUE`` reaches every other setting."""


def read_flags(values: Mapping[str, Any], problems: list[Problem]) -> Located:
    """Return `values` by dotted path (``policy.rule``). Text is read by the type of the setting; None means not given.

    A `Located` value has the option that gave it; other values are placed at the option of the setting.
    """
    tree = Located({}, "command line")
    for name, value in values.items():
        path = tuple(name.split("."))
        kind = type_at(path)
        place = option_of(path)
        if isinstance(value, Located):
            value, place = value.value, value.place
        if kind is None:
            problems.append(Problem(f"--set {name}", f"unknown setting {name}", _fix(name)))
        elif value is not None:
            insert(tree, path, from_text(kind, value, place) if isinstance(value, str) else located(value, place))
    return tree


def option_of(path: tuple[str, ...]) -> str:
    """Return the option that sets `path`, as a place."""
    for flag in FLAGS:
        if flag.path == path[: len(flag.path)]:
            return flag.option
    return f"--set {'.'.join(path)}"


def _fix(name: str) -> str:
    meant = closest(name, [".".join(path) for path, _ in settings()])
    return f"did you mean {meant}?" if meant else "see `warmroute config --sample yaml` for every setting"
