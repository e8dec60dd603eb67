"""Check the settings of the public port: timeouts, limits, paths, browsers and proxies."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import unquote

from router.config.findings import Finding
from router.config.model import Config, TimeoutsConfig
from router.config.tree import Path
from router.gateway.http.routes import forbidden

_ORIGIN = re.compile(r"https?://[^\s/]+")
_PATH = re.compile(r"/[!$-)+->@-~]*")
"""Printable ASCII without quotes, ``#``, ``*`` and ``?``."""
_AMBIGUOUS = re.compile(r"//|(?<=/)\.\.?(?=/|$)|\\|[\x00-\x20\x7f]")
"""Characters and segments because of which a worker or proxy may resolve the path to another one."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def check(config: Config) -> Iterator[Finding]:
    """Find mistakes in timeouts, limits, cors, extra_paths and trusted_proxies."""
    yield from _timeouts(config)
    yield from _limits(config)
    yield from _origins(config)
    yield from _paths(config)
    yield from _proxies(config)


def _timeouts(config: Config) -> Iterator[Finding]:
    limits, defaults = config.timeouts, TimeoutsConfig()
    for key in ("connect_s", "upstream_head_s", "first_event_s", "stream_idle_s", "queue_s"):
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


def _origins(config: Config) -> Iterator[Finding]:
    for index, origin in enumerate(config.cors.allow_origins):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            yield ("cors", "allow_origins", index), f"{origin!r} is not an origin", 'write https://HOST[:PORT] or "*"'


def _paths(config: Config) -> Iterator[Finding]:
    for index, extra in enumerate(config.extra_paths):
        path = ("extra_paths", index, "path")
        stem = extra.path.removesuffix("/*")
        if not _PATH.fullmatch(stem) and extra.path != "/*":
            yield path, f"{extra.path!r} is not a path", "write /PATH, or /PATH/* for all below it"
        elif ambiguous := _AMBIGUOUS.search(unquote(extra.path)):
            yield path, f"{extra.path!r} has {ambiguous[0]!r} in it", "write the path that it stands for"
        elif forbidden(stem):
            yield path, f"{extra.path} changes a worker and is never public", "remove it"
        yield from _methods(extra.methods, ("extra_paths", index, "methods"))


def _methods(methods: tuple[str, ...], path: Path) -> Iterator[Finding]:
    fix = f"write one or more of {', '.join(_METHODS)}"
    if not methods:
        yield path, "methods is empty", fix
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
