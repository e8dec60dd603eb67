"""Redis URLs in their three forms: one server, Sentinel, Cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, urlsplit

Form = Literal["standalone", "sentinel", "cluster"]
FORMS = (
    "redis://HOST:PORT[/DATABASE], redis+sentinel://HOST:PORT,HOST:PORT/SERVICE[/DATABASE] "
    "or redis+cluster://HOST:PORT,HOST:PORT; rediss in place of redis for TLS"
)
_SCHEMES: dict[str, tuple[Form, bool]] = {
    "redis": ("standalone", False),
    "rediss": ("standalone", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_PORTS: dict[Form, int] = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where Redis is. `hosts` are sentinels, or some nodes of a cluster; `service` is the name that sentinels know."""

    form: Form
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    database: int = 0


def parse_address(url: str) -> RedisAddress:
    """Read a URL of any form.

    Raises:
        ValueError: it has none of these forms. The text says why, without the URL.
    """
    parts = urlsplit(url)
    form, tls = _SCHEMES.get(parts.scheme, (None, False))
    if form is None:
        raise ValueError(f"its scheme is none of {', '.join(_SCHEMES)}")
    if "@" in parts.netloc:
        raise ValueError("it has a user name or a password, which belong in redis.username and redis.password")
    if parts.query or parts.fragment:
        raise ValueError("it has a part after ? or #")
    hosts = tuple(_host(text, _PORTS[form]) for text in parts.netloc.split(","))
    if form == "standalone" and len(hosts) > 1:
        raise ValueError("it names several servers, and is neither a Sentinel nor a Cluster URL")
    service, database = _path(form, parts)
    return RedisAddress(form, tls, hosts, service, database)


def _host(text: str, default_port: int) -> tuple[str, int]:
    part = urlsplit(f"//{text}")
    if not part.hostname:
        raise ValueError("it names no host")
    try:
        port = part.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"the port of {part.hostname} is no number from 1 to 65535")
    return part.hostname, port or default_port


def _path(form: Form, parts: SplitResult) -> tuple[str, int]:
    steps = [step for step in parts.path.split("/") if step]
    service = ""
    if form == "sentinel":
        if not steps:
            raise ValueError("it names no service after the sentinels")
        service = steps.pop(0)
    if form == "cluster" and steps:
        raise ValueError("it names a database, and a cluster has one only")
    if len(steps) > 1 or any(not (step.isascii() and step.isdigit() and len(step) < 6) for step in steps):
        raise ValueError("its database is no number")
    return service, int(steps[0]) if steps else 0
