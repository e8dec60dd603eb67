"""A TOML file as a tree. The standard parser keeps no positions, so a scan for headers and keys finds the lines."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from typing import Any

from router.config.problems import ConfigError, Problem
from router.config.tree import Located, Path

_KEY = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[(\[)?\s*({_DOTTED})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")
_LONG_TEXT = re.compile(r"\"{3}|'{3}")
_AT_LINE = re.compile(r"\(at line (\d+)")


def read_toml(text: str, name: str) -> Located:
    """The whole file.

    Raises:
        ConfigError: the text is not TOML.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_problem(str(error), text, name)]) from None
    return _place(values, (), 1, _lines(text), name)


def _place(value: Any, path: Path, line: int, lines: dict[Path, int], name: str) -> Located:
    """`value` with its line, or that of the closest thing around it whose line is known."""
    line = lines.get(path, line)
    if isinstance(value, dict):
        items = value.items()
        return Located({key: _place(item, (*path, key), line, lines, name) for key, item in items}, f"{name}:{line}")
    if isinstance(value, list):
        placed = [_place(item, (*path, index), line, lines, name) for index, item in enumerate(value)]
        return Located(placed, f"{name}:{line}")
    return Located(value, f"{name}:{line}")


def _lines(text: str) -> dict[Path, int]:
    lines: dict[Path, int] = {}
    table: Path = ()
    arrays: Counter[Path] = Counter()
    in_text = False
    for number, line in enumerate(text.split("\n"), 1):
        if in_text:
            pass
        elif header := _HEADER.match(line):
            table = _indexed(_steps(header[2]), arrays)
            if header[1]:
                arrays[table] += 1
                table = (*table, arrays[table] - 1)
            _note(table, 0, number, lines)
        elif assignment := _ASSIGNMENT.match(line):
            _note((*table, *_steps(assignment[1])), len(table), number, lines)
        in_text ^= len(_LONG_TEXT.findall(line)) % 2 == 1
    return lines


def _note(path: Path, below: int, number: int, lines: dict[Path, int]) -> None:
    """Line `number` begins what is at `path`, and each thing around it, deeper than `below`, not yet begun."""
    for length in range(below + 1, len(path) + 1):
        lines.setdefault(path[:length], number)


def _indexed(path: Path, arrays: Counter[Path]) -> Path:
    """A header below an array of tables means the array's newest table."""
    here: Path = ()
    for step in path[:-1]:
        here = (*here, step)
        if arrays[here]:
            here = (*here, arrays[here] - 1)
    return (*here, path[-1])


def _steps(dotted: str) -> Path:
    return tuple(step.strip("\"'") for step in re.findall(_KEY, dotted))


def _problem(said: str, text: str, name: str) -> Problem:
    at = _AT_LINE.search(said)
    line = int(at[1]) if at else len(text.splitlines())
    return Problem(f"{name}:{line}", f"not TOML: {said.partition(' (at')[0]}", "write key = value, text in quotes")
