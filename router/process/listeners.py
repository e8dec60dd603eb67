"""The listening sockets of both ports."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import msgspec

from router.config.model import Config, TlsConfig
from router.gateway.listen.sockets import tcp_error

ADMIN_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Listeners:
    """Listening sockets that this process received. `admin` is None if it received only public sockets.

    With `manager_owned`, a service manager keeps the sockets open, so that connections in their queues survive a close
    here.
    """

    public: tuple[socket.socket, ...]
    admin: socket.socket | None = None
    manager_owned: bool = False

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """All sockets; the admin port's is the last."""
        return self.public if self.admin is None else (*self.public, self.admin)

    def duplicates(self) -> Listeners:
        """Return duplicates, which stay open after these sockets are closed.

        Raises:
            OSError: the process has no file descriptors left.
        """
        kept: list[socket.socket] = []
        try:
            for each in self.sockets:
                kept.append(each.dup())  # noqa: PERF401 - duplicates made before a failure are closed
        except OSError:
            for each in kept:
                each.close()
            raise
        admin = kept.pop() if self.admin is not None else None
        return Listeners(tuple(kept), admin, self.manager_owned)

    def close(self) -> None:
        for each in self.sockets:
            each.close()


class ListenAddresses(msgspec.Struct, frozen=True):
    """The addresses of a gateway's two ports by its settings. `port` and `admin_port` are the bound ports.

    `host` is None where the public sockets came from a service manager, and `admin_host` likewise.
    """

    uds: str | None
    host: str | None
    port: int
    admin_host: str | None
    admin_port: int


def admin_socket(config: Config) -> socket.socket:
    """Return the listening socket of the admin port.

    Raises:
        ListenError: the address cannot be bound.
    """
    host, port = config.admin_host, config.admin_port
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(ADMIN_BACKLOG)
    except OSError as error:
        listener.close()
        raise tcp_error("admin", "admin_", host, port, error) from None
    return listener


def listen_addresses(config: Config, bound: Listeners, given: Listeners | None) -> ListenAddresses:
    """Return the addresses of both ports. `given` are the sockets of a service manager or of the previous gateway."""
    by_manager = given is not None and given.manager_owned
    return ListenAddresses(
        uds=None if by_manager else config.uds,
        host=None if by_manager or config.uds is not None else config.host,
        port=_port(bound.public[0]),
        admin_host=None if by_manager and given is not None and given.admin is not None else config.admin_host,
        admin_port=_port(bound.admin) if bound.admin is not None else 0,
    )


def _port(listener: socket.socket) -> int:
    name = listener.getsockname()
    return int(name[1]) if isinstance(name, tuple) else 0


def url_of(address: str, tls: TlsConfig) -> str:
    """Return a bound address as a URL. An address that begins with a slash or a dot is a Unix socket's path.

    A front without HTTP names its scheme itself.
    """
    if "://" in address:
        return address
    if address.startswith(("/", ".")):
        return f"unix:{address}"
    return f"http://{address}" if tls.cert_file is None else f"https://{address}"
