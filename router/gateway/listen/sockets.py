"""The listening sockets of the public port, bound before any protocol exists for them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress
from typing import Any, NamedTuple

from backends.keep_alive import keep_alive
from router.config.model import Config
from router.requests.front import ListenError

TLS_SHUTDOWN_S = 2.0
"""How long to wait for a client's close_notify at the end of a TLS connection. Most clients never send one."""
_PORT_TRIES = 10
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_OTHER_PATH = "set another path (--uds, uds, WARMROUTE_UDS)"
KERNEL_UNSENT_BYTES = 131_072
"""Bytes of a response that the kernel buffers beyond the bytes it may send now. Without a limit it buffered 2.8 MB over
loopback for each client that does not read. Such buffers count against a container's memory."""


class SocketFile(NamedTuple):
    """Identifies the file of a Unix socket. The modification time is included because inode numbers are reused."""

    path: str
    device: int
    inode: int
    modified_ns: int


def public_sockets(config: Config, backlog: int) -> list[socket.socket]:
    """Return the listening sockets of `config`: one Unix socket, or one socket per address of `host`.

    ``::`` gives two sockets, one per address family. An IPv4 client then has the same address in logs and for
    `trusted_proxies`, whether the port is bound by ``::`` or by ``0.0.0.0``.

    Raises:
        ListenError: no address can be listened on.
    """
    try:
        return [_unix_socket(config.uds, backlog)] if config.uds is not None else _tcp_sockets(config, backlog)
    except ListenError:
        raise
    except OSError as error:
        raise _public_error(config, error) from None


def prepare_accepted(listener: socket.socket) -> None:
    """Set the options of all connections accepted from `listener`, which inherit them: TCP keep-alive, and a limit of
    `KERNEL_UNSENT_BYTES` on the kernel's send buffer."""
    keep_alive(listener)
    if listener.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KERNEL_UNSENT_BYTES)


def _public_error(config: Config, error: OSError) -> ListenError:
    if config.uds is not None:
        return ListenError(f"public socket {config.uds}: {_reason(error)}; {_OTHER_PATH}")
    return tcp_error("public", "", config.host, config.port, error)


def tcp_error(side: str, prefix: str, host: str, port: int, error: OSError) -> ListenError:
    """Return a `ListenError` that tells an operator why a port cannot be bound.

    `prefix` begins the names of the settings: "" or "admin_".
    """
    address = f"{side} port {_authority(host, port)}: {_reason(error)}"
    if error.errno == errno.EADDRINUSE:
        return ListenError(f"{address}; stop the process that uses it, or set another port {_ways(prefix + 'port')}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return ListenError(f"{address}; set another port {_ways(prefix + 'port')}")
    return ListenError(f"{address}; set an address of this machine {_ways(prefix + 'host')}")


def _authority(host: str, port: int) -> str:
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def _ways(key: str) -> str:
    return f"(--{key.replace('_', '-')}, {key}, WARMROUTE_{key.upper()})"


def claim_unix_path(path: str) -> None:
    """Remove the file of a dead socket at `path`.

    Raises:
        ListenError: a process listens on it, or the file is no socket.
        OSError: the file cannot be read or removed.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ListenError(f"public socket {path}: the file exists and is no socket; remove it, or {_OTHER_PATH}")
        if _has_listener(path):
            raise ListenError(f"public socket {path}: a process listens on it; stop that process, or {_OTHER_PATH}")
        os.unlink(path)


def _has_listener(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # the accept queue is full
            return True
    return True


def socket_file(path: str) -> SocketFile | None:
    """Return the identity of the file at `path`, or None if it does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return SocketFile(path, found.st_dev, found.st_ino, found.st_mtime_ns)


def remove_socket_file(ours: SocketFile) -> None:
    """Remove a socket's file unless another process has replaced it."""
    if socket_file(ours.path) == ours:
        with suppress(OSError):
            os.unlink(ours.path)


def _unix_socket(path: str, backlog: int) -> socket.socket:
    claim_unix_path(path)
    return _listening(socket.AF_UNIX, path, backlog)


def _tcp_sockets(config: Config, backlog: int) -> list[socket.socket]:
    """Bind all addresses to one port. With port 0, retry if another family already uses the port that was chosen."""
    addresses = _addresses(config.host.strip("[]"), config.port)
    for _ in range(_PORT_TRIES - 1):
        try:
            return _all_listening(addresses, backlog)
        except OSError as error:
            if config.port != 0 or error.errno != errno.EADDRINUSE:
                raise
    return _all_listening(addresses, backlog)


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    if _any_ipv6(host):
        return [(socket.AF_INET6, ("::", port)), (socket.AF_INET, ("0.0.0.0", port))]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _any_ipv6(host: str) -> bool:
    try:
        return ipaddress.IPv6Address(host).is_unspecified
    except ValueError:
        return False


def _all_listening(addresses: list[tuple[socket.AddressFamily, tuple[Any, ...]]], backlog: int) -> list[socket.socket]:
    """Return one socket per address that this machine has, all on one port. At least one must succeed."""
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    for family, (host, port, *scope) in addresses:
        if listeners:
            port = listeners[0].getsockname()[1]
        try:
            listeners.append(_listening(family, (host, port, *scope), backlog))
        except OSError as error:
            missing = error
            if error.errno in _NOT_HERE:
                continue
            for listener in listeners:
                listener.close()
            raise
    if missing is not None and not listeners:
        raise missing
    return listeners


def _listening(family: socket.AddressFamily, address: Any, backlog: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host name"
    return (os.strerror(error.errno) if error.errno else str(error)).lower()
