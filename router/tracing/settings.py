"""Check the settings of traces."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from router.config.model import Config
from router.config.problems import Finding


def check(config: Config) -> Iterator[Finding]:
    tracing = config.tracing
    if tracing.endpoint is not None:
        try:
            parts = urlsplit(tracing.endpoint)
            usable = (
                parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
            )
        except ValueError:
            usable = False
        if not usable:
            problem = f"{tracing.endpoint!r} is no URL of a receiver"
            yield ("tracing", "endpoint"), problem, "write one such as http://collector:4318/v1/traces"
    for name, value in tracing.headers.items():
        if not name or not all(each.isascii() and (each.isalnum() or each in "-_.") for each in name):
            yield ("tracing", "headers", name), f"{name!r} is no name of a header", "write one such as x-api-key"
        elif not value.isascii() or not value.isprintable():
            yield ("tracing", "headers", name), "the value is no text of a header", "write printable ASCII"
