"""``warmroute completion``: print a script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec import inspect as kinds

from router.cli.options import Commands, HelpFormatter
from router.config.schema import bare, type_at
from router.config.sources.flags import FLAGS

_EXAMPLES = """\
examples:
  source <(warmroute completion bash)                   in ~/.bashrc
  source <(warmroute completion zsh)                    in ~/.zshrc, after compinit
  warmroute completion fish | source                    in ~/.config/fish/config.fish

The script holds the commands and options of this version: make it again after an update, or use these lines.
"""


@dataclass(frozen=True, slots=True)
class OptionWords:
    """The spellings of one option, its help in one line, and the words that can follow. `takes_value`: one must."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandWords:
    """A command by its path from the program on (empty: the program itself), with what can follow it."""

    path: tuple[str, ...]
    help: str
    options: tuple[OptionWords, ...]
    commands: tuple[str, ...]
    values: tuple[str, ...]
    """Words that its positional arguments take."""


def register(commands: Commands, program: argparse.ArgumentParser) -> None:
    """Add the command, which prints what `program` has when it runs."""
    parser = commands.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        description="Print a script that completes commands, options and their values.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell that will read the script")
    parser.set_defaults(run=partial(run, program))


def run(program: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    print(SCRIPTS[arguments.shell](tuple(words_of(program))), end="")
    return 0


def words_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), about: str = "") -> Iterator[CommandWords]:
    """Yield what can follow the program and each of its commands, outer ones first."""
    options, values, below = [], [], {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {each.dest: each.help or "" for each in action._choices_actions}
            below = {name: (parser, summaries.get(name, "")) for name, parser in action.choices.items()}
        elif action.option_strings and action.help != argparse.SUPPRESS:
            options.append(_option(action))
        elif action.choices is not None:
            values += [str(choice) for choice in action.choices]
    yield CommandWords(path, about, tuple(options), tuple(below), tuple(values))
    for name, (sub, summary) in below.items():
        yield from words_of(sub, (*path, name), summary)


def _option(action: argparse.Action) -> OptionWords:
    values = tuple(map(str, action.choices)) if action.choices is not None else _setting_values(action)
    text = (action.help or "").replace("%%", "%").split(". ")[0]
    return OptionWords(tuple(action.option_strings), " ".join(text.split()), action.nargs != 0, values)


def _setting_values(action: argparse.Action) -> tuple[str, ...]:
    """Return the words that the setting behind an option takes; empty if they are not a fixed few."""
    flag = next((flag for flag in FLAGS if flag.option in action.option_strings), None)
    if flag is None or not action.dest.startswith("setting:"):
        return ()
    if flag.option == "--policy":
        from policies.registry import BUILT_IN  # late: only this script names all policies

        return tuple(BUILT_IN)
    kind = type_at(flag.path)
    inner = bare(kind) if kind is not None else None
    return tuple(map(str, inner.values)) if isinstance(inner, kinds.LiteralType) else ()


_BASH = """\
# Completion of warmroute, made by `warmroute completion bash`.
_warmroute() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words="" index
    if [[ $word == "=" ]]; then
        word=""
    elif [[ $before == "=" ]]; then
        before="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    for ((index = 1; index < COMP_CWORD; index++)); do
        case "$command/${{COMP_WORDS[index]}}" in
{commands}
        esac
    done
    case "$command $before" in
{values}
    esac
    case "$command" in
{words}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _warmroute warmroute
"""


def bash_script(commands: tuple[CommandWords, ...]) -> str:
    """Return the script for bash. A value that can be anything is completed as a file."""
    paths = [each.path for each in commands if each.path]
    found = (
        f"            {_quoted(_joined(path[:-1]), path[-1])}) command={shlex.quote(_joined(path))} ;;"
        for path in paths
    )
    values = (line for each in commands for option in each.options for line in _bash_values(each, option))
    words = (
        f"        {shlex.quote(_joined(each.path))}) words={shlex.quote(_bash_words(each))} ;;" for each in commands
    )
    return _BASH.format(commands="\n".join(found), values="\n".join(values), words="\n".join(words))


def _joined(path: tuple[str, ...]) -> str:
    return "/".join(path)


def _quoted(path: str, word: str) -> str:
    return shlex.quote(f"{path}/{word}")


def _bash_values(command: CommandWords, option: OptionWords) -> Iterator[str]:
    if option.takes_value:
        patterns = "|".join(shlex.quote(f"{_joined(command.path)} {name}") for name in option.names)
        reply = f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(option.values))} -- "$word"))' if option.values else ":"
        yield f"        {patterns}) {reply}; return ;;"


def _bash_words(command: CommandWords) -> str:
    return " ".join(
        [*command.commands, *command.values, *(name for option in command.options for name in option.names)]
    )


def zsh_script(commands: tuple[CommandWords, ...]) -> str:
    """Return the script for zsh, which runs bash's through its compatibility functions."""
    return f"#compdef warmroute\nautoload -U +X bashcompinit && bashcompinit\n{bash_script(commands)}"


def fish_script(commands: tuple[CommandWords, ...]) -> str:
    summaries = {each.path: each.help for each in commands}
    lines = ["# Completion of warmroute, made by `warmroute completion fish`.", "complete -c warmroute -f"]
    for command in commands:
        where = f"complete -c warmroute -n {_fish_quoted(_fish_condition(command))}"
        lines += [f"{where} -a {name} -d {_fish_quoted(summaries[(*command.path, name)])}" for name in command.commands]
        lines += [f"{where} -a {_fish_quoted(' '.join(command.values))}"] if command.values else []
        lines += [f"{where} {_fish_option(option)}" for option in command.options]
    return "\n".join(lines) + "\n"


def _fish_condition(command: CommandWords) -> str:
    seen = [f"__fish_seen_subcommand_from {name}" for name in command.path]
    if command.commands:
        seen.append(f"not __fish_seen_subcommand_from {' '.join(command.commands)}")
    return "; and ".join(seen) or "true"


def _fish_option(option: OptionWords) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    value = (
        f" -x -a {_fish_quoted(' '.join(option.values))}" if option.values else " -r -F" if option.takes_value else ""
    )
    return f"{' '.join(names)}{value} -d {_fish_quoted(option.help)}"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: Mapping[str, Callable[[tuple[CommandWords, ...]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}
