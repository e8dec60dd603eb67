"""Check the settings of the public port: timeouts, limits, paths, browsers and proxies."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

import msgspec

from router.config.model import Config, ModelConfig, TimeoutsConfig
from router.config.problems import Finding
from router.config.tree import Path
from router.requests.routes import forbidden

_ORIGIN = re.compile(r"https?://[^\s/]+")
_PATH = re.compile(r"/[!$-)+->@-~]*")
"""Printable ASCII without quotes, ``#``, ``*`` and ``?``."""
_AMBIGUOUS = re.compile(r"//|(?<=/)\.\.?(?=/|$)|\\|[\x00-\x20\x7f]")
"""Characters and segments because of which a worker or proxy may resolve the path to another one."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def check(config: Config) -> Iterator[Finding]:
    """Find mistakes in timeouts, limits, models, cors_origins, extra_paths and trusted_proxies."""
    yield from _timeouts(config)
    yield from _limits(config)
    yield from check_models(config)
    yield from _origins(config)
    yield from _paths(config)
    yield from _proxies(config)
    yield from check_layers(config)


def _timeouts(config: Config) -> Iterator[Finding]:
    limits, defaults = config.timeouts, TimeoutsConfig()
    for key in ("connect_s", "first_event_s", "stream_idle_s", "queue_s"):
        value = getattr(limits, key)
        # A lower total_s alone limits every step; only a step that was set can contradict it.
        if value > limits.total_s and value != getattr(defaults, key):
            problem = f"timeouts.{key} ({value:g}) is above timeouts.total_s ({limits.total_s:g})"
            yield ("timeouts", key), problem, "write a smaller one, or a larger total_s"


def _limits(config: Config) -> Iterator[Finding]:
    one, all_ = config.limits.max_body_bytes, config.limits.max_buffered_body_bytes
    if isinstance(all_, int) and one > all_:
        problem = f"limits.max_body_bytes ({one}) is above limits.max_buffered_body_bytes ({all_})"
        yield ("limits", "max_body_bytes"), problem, "write a smaller one, or a larger max_buffered_body_bytes"


def check_models(config: Config) -> Iterator[Finding]:
    """Find names that mean two models, defaults that are not one, and fallbacks that lead nowhere."""
    models = config.models
    if "" in models:
        yield ("models", ""), "a model's name is empty", "write the name that a worker serves it by"
    owners: dict[str, str] = {}
    defaults = [name for name, model in models.items() if model.default]
    for name in defaults[1:]:
        problem = f"models.{name}.default is true, and so is models.{defaults[0]}.default"
        yield ("models", name, "default"), problem, "keep one of the two"
    for name, model in models.items():
        for index, alias in enumerate(model.aliases):
            place = ("models", name, "aliases", index)
            if not alias or alias in models:
                problem = f"{alias!r} is a model itself" if alias else "an alias is empty"
                yield place, problem, "write another name"
            elif owners.setdefault(alias, name) != name:
                yield place, f"{alias!r} is an alias of {owners[alias]} and of {name}", "remove it from one of the two"
    bases: dict[str, str] = {}
    for name, model in models.items():
        for index, other in enumerate(model.on_request):
            wrong = _misplaced(name, other, bases.setdefault(other, name), owners)
            if wrong is not None:
                yield ("models", name, "on_request", index), wrong, "write NAME or START*, once"
        if model.fallback is not None:
            yield from _fallback(name, model.fallback, owners, models)


def _misplaced(base: str, name: str, first: str, aliases: Mapping[str, str]) -> str | None:
    if not name or "*" in name[:-1]:
        return f"{name!r} is neither a name nor the start of one"
    if name == base:
        return f"{name!r} is the model itself"
    if name in aliases:
        return f"{name!r} is an alias of {aliases[name]}"
    return None if first == base else f"{name!r} is resolved by {first}, and by {base}"


def _fallback(
    name: str, fallback: str, owners: Mapping[str, str], models: Mapping[str, ModelConfig]
) -> Iterator[Finding]:
    place = ("models", name, "fallback")
    if fallback in owners:
        yield place, f"{fallback!r} is an alias of {owners[fallback]}", f"write {owners[fallback]}"
        return
    chain, at = [name], fallback
    while at not in chain:
        chain.append(at)
        after = models[at].fallback if at in models else None
        if after is None:
            return
        at = after
    if at == name:
        yield place, f"fallbacks lead in a circle: {' -> '.join([*chain, at])}", "remove one of them"


def _origins(config: Config) -> Iterator[Finding]:
    for index, origin in enumerate(config.cors_origins):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            yield ("cors_origins", index), f"{origin!r} is not an origin", 'write https://HOST[:PORT] or "*"'


def _paths(config: Config) -> Iterator[Finding]:
    for extra, methods in config.extra_paths.items():
        place, stem = ("extra_paths", extra), extra.removesuffix("/*")
        if not _PATH.fullmatch(stem) and extra != "/*":
            yield place, f"{extra!r} is not a path", "write /PATH, or /PATH/* for all below it"
        elif ambiguous := _AMBIGUOUS.search(unquote(extra)):
            yield place, f"{extra!r} has {ambiguous[0]!r} in it", "write the path that it stands for"
        elif forbidden(stem):
            yield place, f"{extra} changes a worker and is never public", "remove it"
        yield from _methods(methods, place)


def _methods(methods: tuple[str, ...], path: Path) -> Iterator[Finding]:
    fix = f"write one or more of {', '.join(_METHODS)}"
    if not methods:
        yield path, "it has no method", fix
    for method in methods:
        if method not in _METHODS:
            yield path, f"{method!r} is not a method that can be forwarded", fix


def _proxies(config: Config) -> Iterator[Finding]:
    for index, text in enumerate(config.trusted_proxies):
        try:
            ipaddress.ip_network(text)
        except ValueError:
            yield ("trusted_proxies", index), f"{text!r} is not a network", f"write {_network(text)}"


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        return "it as in 10.0.0.0/8"


def check_layers(config: Config) -> Iterator[Finding]:
    """Find layers of routes that do not exist, or whose settings are wrong."""
    from router.gateway.features import ROUTE_LAYERS  # layers import most of the gateway, which `--help` does not need

    for index, route in enumerate(config.routes):
        for name, written in route.layers.items():
            place: Path = ("routes", index, "layers", name)
            if name not in ROUTE_LAYERS:
                yield place, f"{name!r} is not a layer", f"write one of {', '.join(sorted(ROUTE_LAYERS))}"
                continue
            try:
                msgspec.convert(written, ROUTE_LAYERS[name])
            except msgspec.ValidationError as error:
                yield place, str(error), "see the setting routes[].layers"
