"""Read a YAML file as a tree with lines and columns. A duplicate key is a mistake."""

from __future__ import annotations

from typing import Any

import yaml

from router.config.problems import ConfigError, Problem
from router.config.tree import Located

_DEEPEST = 40


def read_yaml(text: str, name: str, problems: list[Problem]) -> Located:
    """Return the one document of the file; an empty file is an empty mapping.

    Raises:
        ConfigError: the text is not YAML.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return Located({}, f"{name}:1:1") if node is None else _Reader(loader, name, problems).read(node)
    except yaml.YAMLError as error:
        raise ConfigError([_problem(error, text, name)]) from None


class _Reader:
    def __init__(self, loader: yaml.SafeLoader, name: str, problems: list[Problem]) -> None:
        self._loader = loader
        self._name = name
        self._problems = problems

    def read(self, node: yaml.Node, place: str | None = None, depth: int = 0) -> Located:
        """Return `node` as a tree; the values of a mapping are placed at their keys."""
        place = place or self._place(node)
        if depth > _DEEPEST:
            raise ConfigError([Problem(place, "nested too deeply", "write it without anchors that hold themselves")])
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place, depth + 1)
        if isinstance(node, yaml.SequenceNode):
            return Located([self.read(item, None, depth + 1) for item in node.value], place)
        return Located(self._scalar(node, place), place)

    def _scalar(self, node: yaml.Node, place: str) -> Any:
        try:
            return self._loader.construct_object(node)
        except yaml.YAMLError:
            raise
        except Exception as error:  # a date or number with an invalid part, such as 2024-13-01
            raise ConfigError([Problem(place, f"not YAML: {error}", "put the value in quotes")]) from None

    def _mapping(self, node: yaml.MappingNode, place: str, depth: int) -> Located:
        self._refuse_duplicates(node)
        self._loader.flatten_mapping(node)
        items = ((str(key.value), key, value) for key, value in node.value)
        return Located({name: self.read(value, self._place(key), depth) for name, key, value in items}, place)

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError([Problem(self._place(key), "a list or mapping as a key", "write a setting's name")])
            first = seen.setdefault(key.value, key)
            if first is not key and key.tag != "tag:yaml.org,2002:merge":
                where = f"keep one; the first is on line {first.start_mark.line + 1}"
                self._problems.append(Problem(self._place(key), f"{key.value} is given twice", where))

    def _place(self, node: yaml.Node) -> str:
        mark = node.start_mark
        return f"{self._name}:{mark.line + 1}:{mark.column + 1}"


def _problem(error: yaml.YAMLError, text: str, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line if mark else text.count("\n", 0, getattr(error, "position", 0))
    column = mark.column if mark else 0
    place = f"{name}:{line + 1}:{column + 1}"
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    return Problem(place, f"not YAML: {said}", "check indentation, colons and quotes on and above this line")
