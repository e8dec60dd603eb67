"""Read an `EndpointPickerConfig`: its plugins, profiles and sections, each with its place in the file.

Source: llm-d-router, apix/config/v1alpha1, and its predecessor in gateway-api-inference-extension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from router.config.problems import ConfigError, Problem, closest, in_file_order
from router.config.sources.yaml_file import read_yaml
from router.config.tree import Located, Path, dotted, plain

KIND = "EndpointPickerConfig"
VERSIONS = ("llm-d.ai/v1alpha1", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1")
_KEYS = (
    *("apiVersion", "kind", "featureGates", "plugins", "schedulingProfiles", "dataLayer", "flowControl"),
    *("requestHandler", "saturationDetector", "parser", "data"),
)
IMPLIED_DETECTOR = "utilization-detector"
"""A detector that may be named without a plugin."""
DEFAULT_WEIGHT = 1.0
"""Of a scorer that has none."""
DEFAULTS: Mapping[str, float] = {
    "queue-scorer": 2.0,
    "kv-cache-utilization-scorer": 2.0,
    "prefix-cache-scorer": 3.0,
}
"""The scorers of llm-d's picker without a file."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin, or the use of one in a profile. `weight` is None where none was written."""

    type: str
    name: str
    parameters: Mapping[str, Any]
    item: str
    weight: float | None = None

    def of(self, path: str) -> Any:
        """Return a parameter by its dotted path, None if it was not written."""
        here: Any = self.parameters
        for step in path.split("."):
            here = here.get(step) if isinstance(here, dict) else None
        return here


@dataclass(frozen=True, slots=True)
class SchedulingProfile:
    name: str
    plugins: tuple[Plugin, ...]


@dataclass(frozen=True, slots=True)
class PickerConfigFile:
    """The file. `sections` are its other keys, without places."""

    plugins: tuple[Plugin, ...]
    profiles: tuple[SchedulingProfile, ...]
    gates: Mapping[str, bool]
    sections: Mapping[str, Any]
    assumed: bool = False
    """The file names no profile, so that `profiles` is the default."""

    def section(self, path: str) -> Any:
        here: Any = self.sections
        for step in path.split("."):
            here = here.get(step) if isinstance(here, dict) else None
        return here

    def plugin(self, name: object) -> Plugin | None:
        return next((one for one in self.plugins if one.name == name), None)


def read_picker_config(text: str, name: str) -> PickerConfigFile:
    """Return the configuration in `text`, the content of the file `name`.

    Raises:
        ConfigError: names every mistake with its place.
    """
    problems: list[Problem] = []
    root = read_yaml(text, name, problems)
    found = _Reading(problems).file(root) if isinstance(root.value, dict) else None
    if found is None:
        problems.append(Problem(root.place, "not a mapping", f"write a file of the kind {KIND}"))
    if problems or found is None:
        raise ConfigError(in_file_order(problems))
    return found


class _Reading:
    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def file(self, root: Located) -> PickerConfigFile | None:
        if not self._is_picker_config(root):
            return PickerConfigFile((), (), {}, {})
        self._known(root, (), _KEYS)
        plugins = tuple(self._plugins(root))
        profiles = tuple(self._profiles(root, {one.name: one for one in plugins}))
        sections = {key: plain(node) for key, node in root.value.items()}
        self._references(root, (), {one.name for one in plugins})
        gates = dict(self._gates(root))
        if profiles:
            return PickerConfigFile(plugins, profiles, gates, sections)
        return PickerConfigFile(plugins, (_assumed(plugins),), gates, sections, assumed=True)

    def _is_picker_config(self, root: Located) -> bool:
        kind, version = (root.value.get(key, Located(None, root.place)) for key in ("kind", "apiVersion"))
        if kind.value != KIND:
            inside = ", such as the text that a ConfigMap or Helm values hold" if kind.value is None else ""
            self._wrong(kind, f"kind is {_shown(kind.value)}", f"give a file whose kind is {KIND}{inside}")
        elif version.value not in VERSIONS:
            self._wrong(version, f"apiVersion is {_shown(version.value)}", f"write one of {', '.join(VERSIONS)}")
        return not self._problems

    def _plugins(self, root: Located) -> Iterator[Plugin]:
        seen: dict[str, str] = {}
        for path, node in self._entries(root, ("plugins",)):
            self._known(node, path, ("type", "name", "parameters"))
            type_ = self._text(node, path, "type")
            name = None if type_ is None else self._text(node, path, "name", type_)
            if type_ is None or name is None:
                continue
            if name in seen:
                self._wrong(
                    node, f"{dotted(path)}: {_shown(name)} is a plugin already ({seen[name]})", "give it a name"
                )
            seen.setdefault(name, dotted(path))
            parameters = node.value.get("parameters", Located(None, node.place))
            if not isinstance(parameters.value, dict | None):
                self._wrong(parameters, f"{dotted(path)}.parameters is no mapping", "write a mapping")
                continue
            called = type_ if name == type_ else f"{type_} {_shown(name)}"
            yield Plugin(type_, name, plain(parameters) or {}, f"{dotted(path)} {called}")

    def _profiles(self, root: Located, plugins: Mapping[str, Plugin]) -> Iterator[SchedulingProfile]:
        for path, node in self._entries(root, ("schedulingProfiles",)):
            self._known(node, path, ("name", "plugins"))
            name = self._text(node, path, "name")
            used = list(self._uses(node, path, plugins))
            if name is not None:
                yield SchedulingProfile(name, tuple(used))

    def _uses(self, profile: Located, path: Path, plugins: Mapping[str, Plugin]) -> Iterator[Plugin]:
        for where, node in self._entries(profile, path, "plugins"):
            self._known(node, where, ("pluginRef", "weight"))
            reference = self._text(node, where, "pluginRef")
            weight = node.value.get("weight", Located(None, node.place))
            if weight.value is not None and (isinstance(weight.value, bool) or not _is_weight(weight.value)):
                self._wrong(weight, f"{dotted(where)}.weight is {_shown(weight.value)}", "write a number from 0")
                continue
            if (plugin := plugins.get(reference or "")) is not None:
                item = f"{dotted(where)} {plugin.item.partition(' ')[2]}"
                number = None if weight.value is None else float(weight.value)
                yield Plugin(plugin.type, plugin.name, plugin.parameters, item, number)

    def _gates(self, root: Located) -> Iterator[tuple[str, bool]]:
        node = root.value.get("featureGates", Located(None, root.place))
        for index, gate in enumerate(self._list(node, ("featureGates",))):
            name, equals, value = str(gate.value).partition("=")
            if not isinstance(gate.value, str) or (equals and value.lower() not in ("true", "false")):
                self._wrong(
                    gate, f"featureGates[{index}] is {_shown(gate.value)}", "write NAME, NAME=true or NAME=false"
                )
            else:
                yield name, value.lower() != "false"

    def _references(self, node: Located, path: Path, names: Collection[str]) -> None:
        """Check that each ``pluginRef`` names a plugin. Policies of flow control may be named without one."""
        if isinstance(node.value, list):
            for index, one in enumerate(node.value):
                self._references(one, (*path, index), names)
        elif isinstance(node.value, dict):
            for key, one in node.value.items():
                if key == "parameters":
                    continue
                implied = (IMPLIED_DETECTOR,) if "saturationDetector" in path else ()
                reference = one.value if key.lower().endswith("pluginref") and isinstance(one.value, str) else None
                if reference is not None and reference not in names and reference not in implied:
                    meant = closest(reference, names)
                    fix = f"did you mean {meant}?" if meant else "name one of `plugins`"
                    self._wrong(one, f"{dotted((*path, key))}: no plugin is named {_shown(reference)}", fix)
                self._references(one, (*path, key), names)

    def _entries(self, node: Located, path: Path, key: str = "") -> Iterator[tuple[Path, Located]]:
        """Yield the mappings in a list with their paths."""
        if key:
            path = (*path, key)
        listed = node.value.get(path[-1], Located(None, node.place))
        for index, one in enumerate(self._list(listed, path)):
            if isinstance(one.value, dict):
                yield (*path, index), one
            else:
                self._wrong(one, f"{dotted((*path, index))} is no mapping", "write a mapping")

    def _list(self, node: Located, path: Path) -> list[Located]:
        if node.value is None:
            return []
        if isinstance(node.value, list):
            return node.value
        self._wrong(node, f"{dotted(path)} is no list", "write a list")
        return []

    def _text(self, node: Located, path: Path, key: str, default: str | None = None) -> str | None:
        found = node.value.get(key)
        if found is None and default is not None:
            return default
        if found is not None and isinstance(found.value, str) and found.value:
            return found.value
        place = found or node
        self._wrong(place, f"{dotted((*path, key))} is {'missing' if found is None else 'no text'}", f"write {key}")
        return None

    def _known(self, node: Located, path: Path, known: Collection[str]) -> None:
        for key, one in node.value.items():
            if key not in known:
                meant = closest(key, known)
                fix = f"did you mean {meant}?" if meant else f"write one of {', '.join(known)}"
                self._wrong(one, f"{dotted((*path, key))[:100]} is no key of {KIND}", fix)

    def _wrong(self, node: Located, problem: str, fix: str) -> None:
        self._problems.append(Problem(node.place, problem, fix))


def _assumed(plugins: tuple[Plugin, ...]) -> SchedulingProfile:
    """Return the profile of a file without one: all plugins, or those of the picker without a file."""
    if plugins:
        return SchedulingProfile("default", plugins)
    return SchedulingProfile(
        "default", tuple(Plugin(type_, type_, {}, type_, weight) for type_, weight in DEFAULTS.items())
    )


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e9


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
