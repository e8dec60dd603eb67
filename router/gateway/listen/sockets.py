"""The public port's listening sockets, bound before any protocol is made for them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress
from typing import Any, NamedTuple

from router.config.model import Config

TLS_SHUTDOWN_S = 2.0
"""How long a client may take to say that it has read the end of a TLS connection; most never do."""
_PORT_TRIES = 10
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_OTHER_PATH = "write another path (--uds, uds, WARMROUTE_UDS)"


KERNEL_UNSENT_BYTES = 131_072
"""What the kernel takes of an answer beyond what it may send now. Left alone it took 2.8 MB over loopback for each
client that does not read, which a container is charged for."""


class ListenError(OSError):
    """An address cannot be listened on. The message names it, the reason, and the setting to change."""


class SocketFile(NamedTuple):
    """What tells one Unix socket's file from a later one at the same path: an inode's number is used again."""

    path: str
    device: int
    inode: int
    modified_ns: int


def public_sockets(config: Config, backlog: int) -> list[socket.socket]:
    """The listening sockets of `config`: one for a Unix socket, else one per address that `host` stands for.

    ``::`` stands for every address of both families, by two sockets: a client's IPv4 address then looks the same
    whichever way the port is bound, in logs and to `trusted_proxies`.

    Raises:
        ListenError: none can be had.
    """
    try:
        return [_unix_socket(config.uds, backlog)] if config.uds is not None else _tcp_sockets(config, backlog)
    except ListenError:
        raise
    except OSError as error:
        raise _public_error(config, error) from None


def limit_kernel_buffer(listener: socket.socket) -> None:
    """Have the kernel take little more of an answer than it can send, for every connection accepted here."""
    if listener.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted sockets inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KERNEL_UNSENT_BYTES)


def _public_error(config: Config, error: OSError) -> ListenError:
    if config.uds is not None:
        return ListenError(f"public socket {config.uds}: {_reason(error)}; {_OTHER_PATH}")
    return tcp_error("public", "", config.host, config.port, error)


def tcp_error(side: str, prefix: str, host: str, port: int, error: OSError) -> ListenError:
    """`error`, met while binding a side's port, in words for an operator.

    `prefix` is what the names of the side's settings begin with: "" or "admin_".
    """
    address = f"{side} port {_authority(host, port)}: {_reason(error)}"
    if error.errno == errno.EADDRINUSE:
        return ListenError(f"{address}; stop what listens there, or write another port {_ways(prefix + 'port')}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return ListenError(f"{address}; write another port {_ways(prefix + 'port')}")
    return ListenError(f"{address}; write an address of this machine {_ways(prefix + 'host')}")


def _authority(host: str, port: int) -> str:
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def _ways(key: str) -> str:
    return f"(--{key.replace('_', '-')}, {key}, WARMROUTE_{key.upper()})"


def claim_unix_path(path: str) -> None:
    """Make way for a socket at `path`: a file that nobody listens on any more is removed.

    Raises:
        ListenError: somebody listens on it, or it is no socket.
        OSError: it cannot be looked at or removed.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ListenError(f"public socket {path}: a file that is no socket is there; remove it, or {_OTHER_PATH}")
        if _answers(path):
            raise ListenError(f"public socket {path}: another process listens on it; stop that one, or {_OTHER_PATH}")
        os.unlink(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # its queue is full: somebody is there, and busy
            return True
    return True


def socket_file(path: str) -> SocketFile | None:
    """The file at `path`, None where there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return SocketFile(path, found.st_dev, found.st_ino, found.st_mtime_ns)


def remove_socket_file(ours: SocketFile) -> None:
    """Remove a socket's file, unless another process has put its own there since."""
    if socket_file(ours.path) == ours:
        with suppress(OSError):
            os.unlink(ours.path)


def _unix_socket(path: str, backlog: int) -> socket.socket:
    claim_unix_path(path)
    return _listening(socket.AF_UNIX, path, backlog)


def _tcp_sockets(config: Config, backlog: int) -> list[socket.socket]:
    """With port 0 the system chooses one; where another family has that taken, it chooses again."""
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
    """One socket per address that this machine has, all on one port; at least one."""
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
