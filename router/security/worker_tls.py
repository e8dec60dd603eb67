"""TLS to workers."""

from __future__ import annotations

import ssl

from backends.worker import Endpoint
from router.config.model import WorkerTlsConfig
from router.security.pem import load_authorities, load_pair

_ALPN = ["http/1.1"]


class _NamedContext(ssl.SSLContext):
    """A context that expects the same server name of every worker at any address, because all have the same
    certificate.
    """

    server_name: str | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name or server_hostname, session)


def worker_context(config: WorkerTlsConfig) -> ssl.SSLContext:
    """Return a client context that trusts the CAs in `ca_file`, or else the system's CAs.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(_ALPN)
    context.server_name = config.server_name
    _fill(context, config)
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _fill(context: ssl.SSLContext, config: WorkerTlsConfig) -> None:
    if config.ca_file is not None:
        load_authorities(context, "ca_file", config.ca_file)
    elif config.verify:
        context.load_default_certs()
    if config.cert_file is not None:
        load_pair(context, config.cert_file, config.key_file)


class WorkerTls:
    """The TLS context of all connections to workers.

    HTTP clients keep the context, so a reload changes it in place: a CA removed from `ca_file` stays trusted until the
    next start.

    Raises:
        UnusableFileError: a file cannot be used.
    """

    def __init__(self, config: WorkerTlsConfig) -> None:
        self._config = config
        # reading the system's CAs takes 20 ms, which is not needed if all workers use plain HTTP
        self._context = worker_context(config) if self.files else None

    @property
    def files(self) -> tuple[str, ...]:
        config = self._config
        return tuple(path for path in (config.ca_file, config.cert_file, config.key_file) if path is not None)

    def context_for(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        """Return the context for `endpoint`, or None for plain HTTP."""
        return self.context() if endpoint.scheme == "https" else None

    def context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = worker_context(self._config)
        return self._context

    def load(self) -> None:
        """Read the files again. Later connections use them.

        Raises:
            UnusableFileError: a file cannot be used; nothing changes.
        """
        worker_context(self._config)
        if self._context is not None:
            _fill(self._context, self._config)
