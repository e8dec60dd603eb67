"""OpenTelemetry's variables (``OTEL_*``) as defaults of the section `tracing`: every other source goes before them.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from router.config.problems import Problem
from router.config.tree import Located, insert, located

_ENDPOINT, _TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_SAMPLER, _SHARE = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_SAMPLERS = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
READ = (
    "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", _ENDPOINT, _TRACES_ENDPOINT,
    "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    _SAMPLER, _SHARE, "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES",
)  # fmt: skip
"""The variables that are read."""


def read_otel(env: Mapping[str, str], problems: list[Problem]) -> Located:
    """Return the settings in `env`; an empty variable counts as not set. Without a receiver nothing is read."""
    tree = Located({}, "environment")
    given = {name: env[name] for name in READ if env.get(name)}
    switched_off = given.get("OTEL_SDK_DISABLED", "").lower() == "true" or given.get("OTEL_TRACES_EXPORTER") == "none"
    if switched_off or not given.keys() & {_ENDPOINT, _TRACES_ENDPOINT}:
        return tree
    _put(tree, "endpoint", *_endpoint(given))
    name = _closer(given, "HEADERS")
    if name is not None:
        _put(tree, "headers", name, _pairs(given[name], name, problems))
    _protocol(given, problems)
    _sampling(tree, given, problems)
    attributes = _pairs(given.get("OTEL_RESOURCE_ATTRIBUTES", ""), "OTEL_RESOURCE_ATTRIBUTES", problems) or {}
    if "OTEL_SERVICE_NAME" in given:
        attributes["service.name"] = given["OTEL_SERVICE_NAME"]
    _put(tree, "resource", "OTEL_RESOURCE_ATTRIBUTES", attributes or None)
    return tree


def _put(tree: Located, setting: str, name: str, value: object) -> None:
    if value is not None:
        insert(tree, ("tracing", setting), located(value, name))


def _endpoint(given: Mapping[str, str]) -> tuple[str, str]:
    if _TRACES_ENDPOINT in given:
        return _TRACES_ENDPOINT, given[_TRACES_ENDPOINT]
    return _ENDPOINT, given[_ENDPOINT].rstrip("/") + "/v1/traces"


def _closer(given: Mapping[str, str], ending: str) -> str | None:
    """Return the variable for traces, or else the one for all signals."""
    names = (f"OTEL_EXPORTER_OTLP_TRACES_{ending}", f"OTEL_EXPORTER_OTLP_{ending}")
    return next((name for name in names if name in given), None)


def _pairs(text: str, name: str, problems: list[Problem]) -> dict[str, str] | None:
    """Read ``KEY=VALUE,KEY=VALUE``, with values in percent-encoding."""
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            problems.append(Problem(name, "an entry has no key or no value", "write KEY=VALUE,KEY=VALUE"))
            return None
        pairs[key.strip()] = unquote(value.strip())
    return pairs


def _protocol(given: Mapping[str, str], problems: list[Problem]) -> None:
    name = _closer(given, "PROTOCOL")
    if name is not None and given[name] != "http/json":
        problems.append(Problem(name, f"the protocol {given[name]!r} is not supported", "write http/json, or unset it"))


def _sampling(tree: Located, given: Mapping[str, str], problems: list[Problem]) -> None:
    sampler = given.get(_SAMPLER, "parentbased_traceidratio" if _SHARE in given else "")
    if not sampler:
        return
    kind = sampler.removeprefix("parentbased_")
    if kind not in _SAMPLERS:
        known = ", ".join(_SAMPLERS)
        problems.append(Problem(_SAMPLER, f"the sampler {sampler!r} is not supported", f"write one of {known}"))
        return
    share = _SAMPLERS[kind]
    try:
        share = float(given.get(_SHARE, "1")) if share is None else share
    except ValueError:
        problems.append(Problem(_SHARE, f"{given[_SHARE]!r} is no number", "write a share from 0 to 1"))
        return
    _put(tree, "share", _SHARE if _SHARE in given else _SAMPLER, share)
