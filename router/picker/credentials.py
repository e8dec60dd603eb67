"""TLS of the picker's port: the operator's files, or a certificate that it signs itself."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Final

import grpc

from router.config.model import TlsConfig
from router.security.file_problem import UnusableFileError
from router.security.tls import serving_context

SELF_SIGNED_DAYS: Final = 3_650
"""Ten years, as GAIE's own picker has: it lives as long as the process, and nobody checks it."""


def credentials_of(config: TlsConfig) -> grpc.ServerCredentials:
    """Return the credentials of a port. Changed files are read at the next handshake.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    if config.cert_file is None:
        return grpc.ssl_server_credentials([self_signed()])
    serving_context(config)  # it names what is wrong with a file
    files = _PemFiles(config)
    return grpc.dynamic_ssl_server_credentials(
        files.read(), files.changed, require_client_authentication=config.client_ca_file is not None
    )


class _PemFiles:
    def __init__(self, config: TlsConfig) -> None:
        assert config.cert_file is not None
        self._config = config
        self._paths = [path for path in (config.cert_file, config.key_file, config.client_ca_file) if path is not None]
        self._seen = self._stamp()

    def _stamp(self) -> list[int]:
        return [os.stat(path).st_mtime_ns for path in self._paths]

    def read(self) -> grpc.ServerCertificateConfiguration:
        config = self._config
        assert config.cert_file is not None
        cert = Path(config.cert_file).read_bytes()
        key = cert if config.key_file is None else Path(config.key_file).read_bytes()
        roots = None if config.client_ca_file is None else Path(config.client_ca_file).read_bytes()
        return grpc.ssl_server_certificate_configuration([(key, cert)], roots)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the files if they have changed and can be used; gRPC keeps what it has otherwise."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return None
            serving_context(self._config)
            self._seen = stamp
            return self.read()
        except (OSError, UnusableFileError):
            return None


def self_signed() -> tuple[bytes, bytes]:
    """Return key and certificate, in PEM, for the name localhost. Gateways do not verify it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "warmroute picker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, certificate.public_bytes(pem)
