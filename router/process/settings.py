"""Check the settings of ports, Unix sockets and processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from router.config.model import Config
from router.config.problems import Finding, is_host
from router.process.children.child_config import count_of

_UNIX_PATH_BYTES = 107
"""Longest path in sockaddr_un on Linux, without its closing zero."""
_SUFFIX_BYTES = 8
"""Longest suffix of a socket's temporary path, before it is renamed."""


def check(config: Config) -> Iterator[Finding]:
    """Find mistakes in hosts, ports, uds, takeover, processes and admin_hosts."""
    yield from _ports(config)
    yield from _sockets(config)
    processes, at_once = count_of(config), config.limits.max_concurrent_requests
    if 0 < at_once < processes:
        problem = f"limits.max_concurrent_requests is {at_once}, which {processes} processes cannot share out"
        yield ("limits", "max_concurrent_requests"), problem, "raise it, or lower processes"
    log = config.decision_log.path
    if log is not None and not Path(log).absolute().parent.is_dir():
        yield ("decision_log", "path"), f"the folder of {log!r} does not exist", "write a path in an existing folder"
    for index, route in enumerate(config.routes):
        if 0 < route.max_requests < processes:
            problem = f"max_requests is {route.max_requests}, which {processes} processes cannot share out"
            yield ("routes", index, "limits", "max_requests"), problem, "raise it, or lower processes"


def _ports(config: Config) -> Iterator[Finding]:
    for key in ("host", "admin_host"):
        host = getattr(config, key)
        if not is_host(host) or not _encodable(host):
            yield (key,), f"{key} is {host!r}", "write an address or a host name, without scheme and port"
    if config.uds is None and config.port == config.admin_port != 0:
        yield ("admin_port",), f"port and admin_port are both {config.port}", "write two different ports"
    for index, name in enumerate(config.admin_hosts):
        if not is_host(name):
            yield ("admin_hosts", index), f"{name!r} is not a host name", "write the name alone, as in router.example"


def _sockets(config: Config) -> Iterator[Finding]:
    if config.uds is not None:
        yield from _unix_socket("uds", config.uds, _UNIX_PATH_BYTES)
        if config.tls.cert_file is not None:
            yield ("tls", "cert_file"), "tls is set, and a Unix socket (uds) has none", "remove one of the two"
    if config.takeover is None:
        return
    yield from _unix_socket("takeover", config.takeover, _UNIX_PATH_BYTES - _SUFFIX_BYTES)
    if config.processes != 1:
        problem = "takeover replaces one process, and processes asks for several"
        yield ("takeover",), problem, "leave one of the two out; systemd's socket activation works with both"
    if config.takeover == config.uds:
        yield ("takeover",), "takeover and uds are the same path", "write two different paths"


def _encodable(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _unix_socket(key: str, path: str, most_bytes: int) -> Iterator[Finding]:
    size_bytes = len(path.encode(errors="replace"))
    if not path or not path.isprintable():
        yield (key,), f"{path!r} is not a path", "write a socket's path"
    elif not Path(path).absolute().parent.is_dir():
        yield (key,), f"the folder of {path!r} does not exist", "write a path in an existing folder"
    elif size_bytes > most_bytes:
        yield (key,), f"the path has {size_bytes} bytes", f"write one of at most {most_bytes}"
