"""Flags for settings, shared by ``serve``, ``check`` and ``config`` and generated from the settings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import inspect as kinds

from router.config.load import Loaded
from router.config.model import Config
from router.config.problems import Check, ConfigError, Finding, Problem
from router.config.sample import descriptions
from router.config.schema import bare, default_of, fields, root, type_at
from router.config.sources.environment import CONFIG_FILE, variable
from router.config.sources.flags import FLAGS, Flag
from router.config.tree import Located
from router.settings import load_with_places

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = Any


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keep descriptions and examples as written, with a wide column for options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def add_command(
    commands: Commands, name: str, summary: str, described: str, examples: str = ""
) -> argparse.ArgumentParser:
    """Add a command; `described` and `examples` are the head and the end of its help."""
    return commands.add_parser(
        name, help=summary, description=described, epilog=examples, formatter_class=HelpFormatter, allow_abbrev=False
    )


def add_settings(parser: argparse.ArgumentParser, unnamed: Container[str] = ()) -> None:
    """Add ``--config``, ``--set`` and one option per entry of `FLAGS`. The help does not name the `unnamed` options.

    A command with flags of its own for settings puts them into `further_settings` of the parsed arguments, by dotted
    path and with their flags as places. ``--set`` wins over them.
    """
    sources = parser.add_argument_group("settings")
    sources.add_argument("--config", metavar="FILE", type=Path, help=f"YAML file [{CONFIG_FILE}]")
    sources.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set any setting by its name in the file, as in timeouts.connect_s=1 (repeatable)",
    )
    parser.set_defaults(further_settings={})
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(flag.group for flag in FLAGS)}
    for flag in FLAGS:
        _add(groups[flag.group], flag, None if flag.option in unnamed else _help(flag))


def _add(group: Any, flag: Flag, described: str | None) -> None:
    shape: dict[str, Any] = (
        {"action": argparse.BooleanOptionalAction} if not flag.metavar else {"metavar": flag.metavar}
    )
    if _repeatable(flag):
        shape["action"] = "append"
    group.add_argument(flag.option, dest=_destination(flag), default=None, help=described or argparse.SUPPRESS, **shape)


def _repeatable(flag: Flag) -> bool:
    return isinstance(bare(_type(flag)), kinds.VarTupleType | kinds.DictType)


def _help(flag: Flag) -> str:
    section: kinds.Type = root()
    for step in flag.path[:-1]:
        assert isinstance(section, kinds.StructType)
        section = bare(fields(section)[step].type)
    assert isinstance(section, kinds.StructType)
    kind = bare(_type(flag))
    described = descriptions(section.cls)[flag.path[-1]].rstrip(".")
    text = flag.help or described[0].lower() + described[1:]
    choices = f": {', '.join(map(str, kind.values))}" if isinstance(kind, kinds.LiteralType) else ""
    default = default_of(flag.path)
    shown = f" (default {default})" if default else ""
    return f"{text}{choices}{shown} [{variable(flag.path)}]".replace("%", "%%")


def _type(flag: Flag) -> kinds.Type:
    kind = type_at(flag.path)
    assert kind is not None, flag.option
    return kind


def _destination(flag: Flag) -> str:
    return f"setting:{'.'.join(flag.path)}"


def read_settings(arguments: argparse.Namespace, further: Sequence[Check] = ()) -> Loaded:
    """Return the effective settings of a parsed command line, the environment and the file, after `further` checks.

    Raises:
        ConfigError: names every mistake found.
    """
    return load_with_places(_values(arguments), os.environ, arguments.config, further)


def settings_file(arguments: argparse.Namespace) -> Path | None:
    file: Path | None = arguments.config
    named = os.environ.get(CONFIG_FILE)
    return file if file is not None or not named else Path(named)


def read_usable_settings(arguments: argparse.Namespace) -> Loaded:
    """Return the settings as `read_settings` does, after reading the tokenizers and chat templates that they name.

    Raises:
        ConfigError: names every mistake found.
    """
    return read_settings(arguments, (_broken_files,))


def _broken_files(config: Config) -> Iterable[Finding]:
    if not (config.model_dir or config.tokenizer or config.models):
        return ()
    from router.tokenization.named_files import broken_files  # late: without named files no tokenizer is needed

    return broken_files(config)


def _values(arguments: argparse.Namespace) -> dict[str, Any]:
    given = pairs("--set", arguments.set)
    further: dict[str, Located] = arguments.further_settings
    values: dict[str, Any] = {**further, **{name: Located(text, f"--set {name}") for name, text in given.items()}}
    for flag in FLAGS:
        value = getattr(arguments, _destination(flag))
        name = ".".join(flag.path)
        if isinstance(bare(_type(flag)), kinds.DictType):
            values |= {f"{name}.{key}": value for key, value in pairs(flag.option, value or []).items()}
        elif value is not None:
            values[name] = value
    return values


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the values of a repeatable option by their keys.

    Raises:
        ConfigError: a text is not KEY=VALUE.
    """
    bad = [text for text in texts if "=" not in text or text.startswith("=")]
    if bad:
        raise ConfigError(
            [Problem(option, f"{text!r} is not KEY=VALUE", f"write {option} {text}=VALUE") for text in bad]
        )
    return dict(text.split("=", 1) for text in texts)
