"""Certificates and keys from PEM files."""

from __future__ import annotations

import ssl

from router.security.file_problem import UnusableFileError, read_file

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
