"""Check the settings of sources of workers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backends.discovery.fields import FIELDS, LABEL, parse_server
from backends.discovery.registration import Registration
from router.config.model import STRUCK_OUT, Config, DiscoverySourceConfig
from router.config.problems import Finding, closest
from router.config.tree import Path
from router.control.control import API, SETTINGS
from router.discovery.networks import networks_of
from router.discovery.workers import settings_of

REGISTERED = "registered"
"""The source of workers that register themselves at the admin API."""
KINDS = ("file", "dns", "kubernetes", "redis")
_RESERVED = (SETTINGS, API, REGISTERED)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SELECTIONS = ("service", "pods", "pool")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_COMMON = ("model", "role", "weight", "kv-events-port", "kv-replay-port")
"""Fields that several workers can have in common."""


def kinds_of(source: DiscoverySourceConfig) -> list[str]:
    return [kind for kind in KINDS if getattr(source, kind) is not None]


def check(config: Config) -> Iterator[Finding]:
    """Find mistakes in the sources and in the networks of registrations."""
    yield from _network_findings(config.discovery.registration_networks)
    for name, source in config.discovery.sources.items():
        path = ("discovery", "sources", name)
        yield from _name_findings(name, path)
        yield from _kind_findings(source, path)
        yield from _server_findings(source, (*path, "dns", "nameservers"))
        yield from _kubernetes_findings(source, (*path, "kubernetes"))
        if source.redis is not None and config.redis.url is None:
            yield (*path, "redis"), "the source reads Redis, and redis.url is not set", "write redis.url"
        yield from _default_findings(source, (*path, "defaults"))
        if source.api_key == STRUCK_OUT:
            problem = f"api_key is {STRUCK_OUT}, which stands for a key that is not shown"
            yield (*path, "api_key"), problem, "write the key"


def _network_findings(texts: tuple[str, ...]) -> Iterator[Finding]:
    for index, text in enumerate(texts):
        try:
            networks_of((text,))
        except ValueError as error:
            path = ("discovery", "registration_networks", index)
            yield path, str(error), "write a network such as 10.0.0.0/8 or fd00::/8, or an address"


def _name_findings(name: str, path: Path) -> Iterator[Finding]:
    if not _NAME.fullmatch(name):
        yield path, f"{name!r} cannot name a source", "write small letters, digits, - and _"
    elif name in _RESERVED:
        yield path, f"the name {name} is taken", f"write another name than {', '.join(_RESERVED)}"


def _kind_findings(source: DiscoverySourceConfig, path: Path) -> Iterator[Finding]:
    found = kinds_of(source)
    if not found:
        yield path, "the source has no kind", f"write one of {', '.join(KINDS)}"
    elif len(found) > 1:
        yield (*path, found[1]), f"the source has the kinds {' and '.join(found)}", "write two sources"


def _server_findings(source: DiscoverySourceConfig, path: Path) -> Iterator[Finding]:
    for index, server in enumerate(source.dns.nameservers if source.dns is not None else ()):
        try:
            parse_server(server)
        except ValueError as error:
            problem, _, fix = str(error).partition("; ")
            yield (*path, index), problem, fix


def _kubernetes_findings(source: DiscoverySourceConfig, path: Path) -> Iterator[Finding]:
    wanted = source.kubernetes
    if wanted is None:
        return
    given = [name for name in _SELECTIONS if getattr(wanted, name) is not None]
    if len(given) != 1:
        yield path, f"the source names {' and '.join(given) or 'no workers'}", f"write one of {', '.join(_SELECTIONS)}"
    for name in ("service", "pool", "namespace"):
        text = getattr(wanted, name)
        if text is not None and not _OBJECT.fullmatch(text):
            yield (*path, name), f"{text!r} is no name of Kubernetes", "write small letters, digits, - and ."
    if wanted.port is not None and wanted.pool is not None:
        yield (*path, "port"), "the pool names the ports itself", "leave port out"
    if not wanted.api_url.startswith(("https://", "http://")):
        yield (*path, "api_url"), f"{wanted.api_url!r} is no URL", "write https://HOST:PORT"


def _default_findings(source: DiscoverySourceConfig, path: Path) -> Iterator[Finding]:
    wrong = False
    for field in source.defaults:
        if field not in _COMMON and not field.startswith(LABEL):
            wrong = True
            meant = closest(field, _COMMON)
            own = "each worker has its own" if field in FIELDS else "it is no field of a worker"
            fix = f"did you mean {meant}?" if meant else f"write one of {', '.join(_COMMON)}, {LABEL}NAME"
            yield (*path, field), f"{field} cannot be a default: {own}", fix
    if not wrong and source.api_key != STRUCK_OUT:
        try:
            settings_of(Registration(url="http://worker:1"), source)
        except ValueError as error:
            yield path, str(error), "write values that a worker can have"
