"""The admin port's token."""

from __future__ import annotations

import hmac
import re
from typing import NamedTuple

from router.security.file_problem import UnusableFileError, read_text
from router.security.keys import digest_of

_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_TOKEN = re.compile(r"[!-~]+")
LEAST_CHARACTERS = 16


class TokenSettings(NamedTuple):
    """`admin_token` and `admin_token_file`, at most one of them set."""

    token: str | None
    file: str | None


def _digest(setting: str, text: str) -> bytes:
    """Return the digest of a token, which may be given as a digest.

    Raises:
        UnusableFileError: it is neither a token nor a digest.
    """
    hashed = _HASHED.fullmatch(text)
    if hashed is not None:
        return bytes.fromhex(hashed[1])
    fix = f"write {LEAST_CHARACTERS} or more printable characters without spaces, or sha256:HEX"
    if text.startswith("sha256:"):
        raise UnusableFileError(setting, "the digest is not 64 hexadecimal digits in lower case", fix)
    if _TOKEN.fullmatch(text) is None or len(text) < LEAST_CHARACTERS:
        raise UnusableFileError(setting, "the token is too short, empty, or has spaces in it", fix)
    return digest_of(text.encode())


class AdminToken:
    """The token that a request to the admin port must carry. Kept as a digest, compared in constant time.

    Raises:
        UnusableFileError: the settings or the file cannot be used.
    """

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._expected = self._read()

    @property
    def files(self) -> tuple[str, ...]:
        """The file that was read."""
        return () if self._settings.file is None else (self._settings.file,)

    def load(self) -> None:
        """Read the file again.

        Raises:
            UnusableFileError: it cannot be used; the token stays as it was.
        """
        self._expected = self._read()

    def _read(self) -> bytes:
        token, file = self._settings
        if file is None:
            return _digest("admin_token", token or "")
        fix = "write the path of a file that holds the token, or its sha256:HEX, and nothing else"
        return _digest("admin_token_file", read_text("admin_token_file", file, fix).strip())

    def admits(self, authorization: str) -> bool:
        """Return whether the value of an Authorization header carries the token."""
        scheme, _, token = authorization.partition(" ")
        given = digest_of(token.strip().encode("latin-1", "replace"))
        return hmac.compare_digest(given, self._expected) and scheme.lower() == "bearer"


def admin_token(settings: TokenSettings) -> AdminToken | None:
    """Return the token that `settings` name, or None.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    return AdminToken(settings) if settings.token is not None or settings.file is not None else None
