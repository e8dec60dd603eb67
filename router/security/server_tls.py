"""TLS of a listening port."""

from __future__ import annotations

import ssl

from router.config.model import TlsConfig
from router.security.pem import load_authorities, load_pair

_ALPN = ["http/1.1"]


def serving_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a server context: TLS 1.2 or 1.3, HTTP/1.1. With `client_ca_file`, clients need a certificate.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    assert config.cert_file is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(_ALPN)
    load_pair(context, config.cert_file, config.key_file)
    if config.client_ca_file is not None:
        load_authorities(context, "client_ca_file", config.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
        # OpenSSL does not verify a resumed session again, so a session would outlive a CA that is no longer trusted
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


class ServingTls:
    """`context` belongs to the listeners; each handshake uses the files as last read.

    A context cannot forget a CA, and it is unusable after its certificate and before its key has been replaced. So a
    reload makes a new context. The handshake switches to it when OpenSSL calls back for the server name, sent or not.

    Raises:
        UnusableFileError: a file cannot be used.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._latest = self.context = serving_context(config)
        self.context.sni_callback = self._take_latest

    @property
    def files(self) -> tuple[str, ...]:
        config = self._config
        return tuple(path for path in (config.cert_file, config.key_file, config.client_ca_file) if path is not None)

    def load(self) -> None:
        """Read the files again. Later handshakes use them.

        Raises:
            UnusableFileError: a file cannot be used; nothing changes.
        """
        self._latest = serving_context(self._config)

    def _take_latest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if self._latest is not context:
            connection.context = self._latest


def serving_tls(config: TlsConfig) -> ServingTls | None:
    """Return TLS for `config`, or None if it has none.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    return ServingTls(config) if config.cert_file is not None else None
