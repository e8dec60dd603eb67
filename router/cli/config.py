"""``warmroute config``: print the effective settings, or the commented sample."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import yaml

from router.cli.options import Commands, add_command, add_settings, read_settings
from router.config.budgets import plan_memory
from router.config.load import Loaded
from router.config.memory import memory_limit
from router.config.model import to_builtins
from router.config.sample import sample_yaml
from router.process.children.child_config import count_of

_EXAMPLES = """\
examples:
  warmroute config --sample yaml > warmroute.yaml       every setting, with its default and description
  warmroute config --config warmroute.yaml              the effective settings, as YAML
  warmroute config --config warmroute.yaml --origins    which file line, variable or flag each setting came from
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "config",
        "print the effective settings, or a commented sample file",
        "Print the settings that `serve` would use with the same flags, environment and file.",
        _EXAMPLES,
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--sample", choices=["yaml"], help="print a commented sample file instead")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--origins", action="store_true", help="print only settings that were given, with their place")
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.sample:
        print(sample_yaml(), end="")
        return 0
    loaded = read_settings(arguments)
    if arguments.origins:
        print("\n".join(_origins(loaded)) or "every setting has its default")
        return 0
    effective = to_builtins(plan_memory(loaded.config, count_of(loaded.config), memory_limit()).config)
    if arguments.json:
        print(json.dumps(effective, indent=2))
    else:
        print(yaml.safe_dump(effective, sort_keys=False, allow_unicode=True), end="")
    return 0


def _origins(loaded: Loaded) -> Iterator[str]:
    for path, value in _leaves(to_builtins(loaded.config), ()):
        place = next((loaded.places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in loaded.places), None)
        if path in loaded.places and place:
            yield f"{'.'.join(path)}: {json.dumps(value)}  # {place}"


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield path, value
