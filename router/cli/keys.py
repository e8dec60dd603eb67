"""``warmroute keys``: make API keys and tokens of the admin port, and their lines for the file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from router.cli.options import Commands, add_command
from router.config.problems import ConfigError, Problem
from router.security.file_problem import UnusableFileError
from router.security.keys import LEAST_CHARACTERS, NAME, KeyEntry, digest_of, new_key, parse_file
from router.security.token import Role, TokenEntry, parse_tokens_file

_EXAMPLES = """\
examples:
  warmroute keys new alice                              print a key, once, and its line for the file
  warmroute keys new alice --file api-keys              add the line to the file and print the key alone
  warmroute keys new alice --stdin < key.txt            print the line for an existing key
  warmroute keys new grafana --role read --file tokens  the same for a token of the admin port

The file (auth.api_keys_file, or admin_tokens_file with --role) holds names and SHA-256 digests. A running gateway reads
it again when it changes. A name may have two lines while one key replaces another. To revoke a key, remove its line.
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "keys",
        "make API keys for clients of the public port, and tokens of the admin port",
        "Make API keys for clients of the public port and, with --role, tokens of the admin port.",
        _EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make a key", allow_abbrev=False)
    new.set_defaults(run=_new)
    new.add_argument("name", metavar="NAME", help="name of the key: letters, digits, dots, - and _")
    new.add_argument("--role", type=Role, choices=list(Role), help="make a token of the admin port with this role")
    new.add_argument("--file", metavar="FILE", type=Path, help="add the line to this file")
    new.add_argument("--stdin", action="store_true", help="read an existing key from standard input")


def _new(arguments: argparse.Namespace) -> int:
    key = _given(arguments) if arguments.stdin else new_key()
    entry = _entry(arguments, key)
    if arguments.file is not None:
        _add(arguments.file, entry)
    if arguments.stdin:
        print(entry.line)
    else:
        print(key if arguments.file else f"key, shown this once:  {key}\nline for the file:     {entry.line}")
    return 0


def _given(arguments: argparse.Namespace) -> str:
    _name(arguments)
    key = sys.stdin.readline().strip()
    if len(key) < LEAST_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
        problem = f"the key has under {LEAST_CHARACTERS} characters, spaces, or others than ASCII"
        fix = "use `warmroute keys new`: a plain hash protects only keys that nobody can guess"
        raise ConfigError([Problem("standard input", problem, fix)])
    return key


def _entry(arguments: argparse.Namespace, key: str) -> KeyEntry | TokenEntry:
    name, digest = _name(arguments), digest_of(key.encode())
    return KeyEntry(name, digest) if arguments.role is None else TokenEntry(name, arguments.role, digest)


def _name(arguments: argparse.Namespace) -> str:
    name: str = arguments.name
    if NAME.fullmatch(name) is None:
        fix = "write up to 64 letters, digits, dots, - and _, a letter or a digit first"
        raise ConfigError([Problem("NAME", f"{name!r} is not a name", fix)])
    return name


def _add(path: Path, entry: KeyEntry | TokenEntry) -> None:
    """Append to the file. If the file exists, it must hold entries of the same kind."""
    parse = parse_tokens_file if isinstance(entry, TokenEntry) else parse_file
    try:
        present = parse(str(path)) if path.exists() else []
        if any(each.digest == entry.digest for each in present):
            raise UnusableFileError("--file", f"{path} has this key already", "make another one")
        ended = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
        with open(path, "a", encoding="utf-8", opener=_private) as file:
            file.write(f"{'' if ended else chr(10)}{entry.line}\n")
    except UnusableFileError as error:
        raise ConfigError([Problem("--file", error.problem, error.fix)]) from None
    except OSError as error:
        said = error.strerror or "unusable"
        raise ConfigError([Problem("--file", f"cannot write {str(path)!r}: {said}", "write another path")]) from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
