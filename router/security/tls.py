"""TLS of a listening port and to workers, with certificates and keys from PEM files."""

from __future__ import annotations

import ssl

from backends.worker import Endpoint
from router.config.model import TlsConfig, WorkerTlsConfig
from router.security.file_problem import UnusableFileError, read_file

_ALPN = ["http/1.1"]
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"


class _Encrypted(Exception):
    """OpenSSL asks for a pass phrase."""


def load_pair(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
    """Load the certificate in `cert_file`, whose key may be in the same file, into `context`.

    Raises:
        UnusableFileError: a file is missing or of the wrong kind, or the two do not belong together.
    """
    fix = "write a PEM file with the certificate and those between it and its CA"
    if _CERTIFICATE not in read_file("cert_file", cert_file, fix):
        raise UnusableFileError("cert_file", f"{cert_file!r} holds no PEM certificate", fix)
    setting, holder = ("key_file", key_file) if key_file is not None else ("cert_file", cert_file)
    fix = "write a PEM file with the certificate's private key"
    if _KEY not in read_file(setting, holder, fix):
        raise UnusableFileError("key_file", f"{holder!r} holds no PEM private key", fix)
    try:
        context.load_cert_chain(cert_file, key_file, password=_ask)
    except _Encrypted:
        fix = "write it without a pass phrase, readable by the gateway's user only"
        raise UnusableFileError("key_file", f"the key in {holder!r} is encrypted", fix) from None
    except (ssl.SSLError, OSError) as error:
        raise _unusable_pair(error, cert_file, holder) from None


def _ask() -> str:
    raise _Encrypted


def _unusable_pair(error: OSError, cert_file: str, holder: str) -> UnusableFileError:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        problem = f"the key in {holder!r} does not belong to the certificate in {cert_file!r}"
        return UnusableFileError(
            "key_file", problem, "write the pair that was made together, the server's certificate first"
        )
    problem = f"{cert_file!r} and {holder!r} cannot be used: {reason.lower().replace('_', ' ')}"
    return UnusableFileError("cert_file", problem, "write a PEM certificate and its private key")


def load_authorities(context: ssl.SSLContext, setting: str, path: str) -> None:
    """Make `context` trust the certificates in the file that `setting` names.

    Raises:
        UnusableFileError: it cannot be read, or contains no certificate.
    """
    fix = "write a PEM file with the CA's certificate"
    if _CERTIFICATE not in read_file(setting, path, fix):
        raise UnusableFileError(setting, f"{path!r} holds no PEM certificate", fix)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        reason = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
        raise UnusableFileError(setting, f"{path!r} cannot be used: {reason}", fix) from None


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
