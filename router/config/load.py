"""Read the settings (flag > environment > file > OTEL_* > default), check them, and report all mistakes at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import msgspec

from router.config.model import Config, PolicyConfig
from router.config.problems import Check, ConfigError, Finding, Problem, in_file_order, in_order
from router.config.sources.environment import CONFIG_FILE, read_environment
from router.config.sources.flags import read_flags
from router.config.sources.otel import read_otel
from router.config.sources.yaml_file import read_yaml
from router.config.tree import Located, Path, dotted
from router.config.typed import TypedTree


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and for each setting that a source gave, the place in the source that won."""

    config: Config
    places: Mapping[Path, str]


def load(
    argv_values: Mapping[str, Any], env: Mapping[str, str], file: FilePath | None, checks: Iterable[Check]
) -> Loaded:
    """Return the effective settings and the place of each value that a source gave.

    `argv_values` are flags by dotted path (``policy.rule``), as text or as values; None means not given. Without
    `file`, ``WARMROUTE_CONFIG`` in `env` may name one. `checks` look at the settings once their types are right.

    Raises:
        ConfigError: names every mistake found.
    """
    problems: list[Problem] = []
    trees = [
        read_otel(env, problems),
        *_file_tree(env, file, problems),
        read_environment(env, problems),
        read_flags(argv_values, problems),
    ]
    values: dict[str, Any] = {}
    places: dict[Path, str] = {}
    wrong: set[Path] = set()
    for tree in trees:
        reading = TypedTree(tree)
        problems += reading.problems
        wrong |= reading.wrong
        values = _merged(values, reading.values)
        places |= reading.places
    config = _converted(values, wrong)
    found = in_order(finding for check in checks for finding in check(config))
    problems += problems_of((one for one in found if not _depends(one[0], wrong)), places)
    if problems:
        raise ConfigError(in_file_order(problems))
    return Loaded(config, places)


def _file_tree(env: Mapping[str, str], file: FilePath | None, problems: list[Problem]) -> list[Located]:
    place = "--config" if file else CONFIG_FILE
    if file is None and env.get(CONFIG_FILE):
        file = FilePath(env[CONFIG_FILE])
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError([Problem(place, f"cannot read {str(file)!r}: {said}", "write a readable file")]) from None
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise ConfigError(
            [Problem(place, f"{str(file)!r} is not a YAML file by its name", "write a file named *.yaml")]
        )
    return [read_yaml(text, str(file), problems)]


def _converted(values: dict[str, Any], wrong: Collection[Path]) -> Config:
    """Return the settings, without the sections in which a wrong value leaves nothing that could be used."""
    while True:
        try:
            return msgspec.convert(values, Config)
        except msgspec.ValidationError:
            broken = next((path[0] for path in wrong if path and path[0] in values), None)
            if broken is None:
                raise
            values = {name: value for name, value in values.items() if name != broken}


def _depends(path: Path, wrong: Iterable[Path]) -> bool:
    """Return whether a finding at `path` is about a value that is not known."""
    return any(path[: len(one)] == one or one[: len(path)] == path for one in wrong)


def problems_of(found: Iterable[Finding], places: Mapping[Path, str]) -> list[Problem]:
    return [Problem(_place(path, places), problem, fix) for path, problem, fix in found]


def _place(path: Path, places: Mapping[Path, str]) -> str:
    """Return where the value at `path`, or the closest mapping around it, was written; its name if it is a default."""
    for length in range(len(path), 0, -1):
        if place := places.get(path[:length]):
            return place
    return dotted(path)


def _merged(low: dict[str, Any], high: dict[str, Any], path: Path = ()) -> dict[str, Any]:
    """Merge `high` over `low`, two mappings at `path`: mappings key by key, lists and scalars as a whole.

    A source that names another rule does not inherit the parameters of the rule that it replaces. A source that only
    switches a wrapper of a policy on keeps its parameters.
    """
    if path == ("policy",) or (len(path) == 2 and path[0] == "policies"):
        kept = [name for name in ("hold", "lanes") if high.get(name) is True and isinstance(low.get(name), dict)]
        low, high = _without_stale_params(low, high), {key: high[key] for key in high if key not in kept}
    both = {**low, **high}
    for key in low.keys() & high.keys():
        if isinstance(low[key], dict) and isinstance(high[key], dict):
            both[key] = _merged(low[key], high[key], (*path, key))
    return both


def _without_stale_params(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    named = low.get("rule", PolicyConfig().rule)
    if high.get("rule", named) == named:
        return low
    return {key: value for key, value in low.items() if key != "params"}
