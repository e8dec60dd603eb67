"""The admin port's tokens and TLS, both read again when their files change."""

from __future__ import annotations

import ssl

from router.config.model import Config
from router.security.reload import FileWatch
from router.security.server_tls import serving_tls
from router.security.token import AdminTokens, admin_tokens


def guard_of(config: Config, files: FileWatch) -> tuple[AdminTokens | None, ssl.SSLContext | None]:
    """Return the tokens and the TLS context of `config`, None for each that is not set. `files` reloads both.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    tokens = admin_tokens(config)
    tls = serving_tls(config.admin_tls)
    files.add("admin_token", tokens)
    files.add("admin_tls", tls)
    return tokens, tls.context if tls is not None else None
