"""``warmroute completion``: print a script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import shtab
from msgspec import inspect as kinds

from router.cli.options import Commands, add_command
from router.config.schema import bare, type_at
from router.config.sources.flags import FLAGS

_EXAMPLES = """\
examples:
  source <(warmroute completion bash)                   in ~/.bashrc
  source <(warmroute completion zsh)                    in ~/.zshrc, after compinit
  warmroute completion fish | source                    in ~/.config/fish/config.fish

The script holds the commands and options of this version: make it again after an update, or use these lines.
"""


def register(commands: Commands, program: argparse.ArgumentParser) -> None:
    parser = add_command(
        commands,
        "completion",
        "print a completion script for bash, zsh or fish",
        "Print a script that completes commands, options and their values.",
        _EXAMPLES,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that will read the script")
    parser.set_defaults(run=partial(run, program))


def run(program: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    print(script(program, arguments.shell))
    return 0


def script(program: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script of `program`, whose options of settings get their values as choices."""
    for action in _actions(program):
        if action.choices is None and action.dest.startswith("setting:"):
            action.choices = _setting_values(action)
    return shtab.complete(program, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _setting_values(action: argparse.Action) -> tuple[str, ...] | None:
    """Return the words that the setting behind an option takes; None if they are not a fixed few."""
    flag = next((flag for flag in FLAGS if flag.option in action.option_strings), None)
    if flag is None:
        return None
    if flag.option == "--policy":
        from policies.registry import BUILT_IN  # late: only this script names all policies

        return tuple(BUILT_IN)
    kind = type_at(flag.path)
    inner = bare(kind) if kind is not None else None
    return tuple(map(str, inner.values)) if isinstance(inner, kinds.LiteralType) else None
