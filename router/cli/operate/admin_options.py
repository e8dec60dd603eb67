"""Options of the commands that call the admin port of a running gateway."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from router.config.problems import ConfigError, Problem

DEFAULT_URL = "http://127.0.0.1:8001"
TOKEN_VARIABLE = "WARMROUTE_ADMIN_TOKEN"


def add_admin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"URL of the gateway's admin port (default {DEFAULT_URL})")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token", help="token of the admin port; other users of this host can see it")
    token.add_argument("--token-file", metavar="FILE", type=Path, help="file with the token of the admin port")
    parser.add_argument("--ca-file", metavar="FILE", help="PEM file with the CAs of an https admin port")


def add_output(parser: argparse.ArgumentParser, form: str = "table") -> None:
    parser.add_argument(
        "-o", "--output", choices=[form, "json"], default=form, help="form of the output (default %(default)s)"
    )
    parser.add_argument("--json", dest="output", action="store_const", const="json", help="the same as -o json")


def add_change(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("--if-match", metavar="TAG", help="change only if the desired state has this ETag")


def token_of(arguments: argparse.Namespace) -> str | None:
    """Return the token of the admin port; None if none is given.

    Raises:
        ConfigError: it cannot be read, or is no token.
    """
    place, token = "--token", arguments.token
    if arguments.token_file is not None:
        place = "--token-file"
        try:
            token = arguments.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            problem = f"cannot read {str(arguments.token_file)!r}: {said}"
            raise ConfigError([Problem(place, problem, "write a readable file")]) from None
    elif token is None:
        place, token = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE) or None
    if token is None:
        return None
    if token.startswith("sha256:"):
        raise ConfigError([Problem(place, "this is the digest of a token", "write the token itself")])
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        problem = "the token is empty, or has spaces or characters that are not ASCII"
        raise ConfigError([Problem(place, problem, "write the token that the gateway has")])
    return str(token)
