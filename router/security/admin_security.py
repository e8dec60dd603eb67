"""The admin port's token and TLS, both read again when their files change."""

from __future__ import annotations

import ssl

from router.config.model import Config
from router.security.reload import FileWatch
from router.security.server_tls import serving_tls
from router.security.token import AdminToken, TokenSettings, admin_token


def guard_of(config: Config, files: FileWatch) -> tuple[AdminToken | None, ssl.SSLContext | None]:
    """Return the token and the TLS context of `config`, None for each that is not set. `files` reloads both.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    token = admin_token(TokenSettings(config.admin_token, config.admin_token_file))
    tls = serving_tls(config.admin_tls)
    files.add("admin_token", token)
    files.add("admin_tls", tls)
    return token, tls.context if tls is not None else None
