"""The admin port's tokens. Each has a name and a role, and is kept as a SHA-256 digest."""

from __future__ import annotations

import hmac
import re
import ssl
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from router.config.model import Config
from router.security.file_problem import UnusableFileError, read_text
from router.security.keys import NAME, digest_of, entries_of, parsed
from router.security.reload import FileWatch
from router.security.tls import serving_tls

_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_TOKEN = re.compile(r"[!-~]+")
LEAST_CHARACTERS = 16
SINGLE = "admin_token"
"""Name of the token that admin_token or admin_token_file gives. Its role is admin."""
_MAKE_ONE = "make one with `warmroute keys new NAME --role ROLE`"


class Role(StrEnum):
    """What a token allows.

    `READ` sees the state of the gateway. `REGISTER` registers workers, and nothing else: the token lies on each
    worker's host. `OPERATE` reads, and makes changes that can be taken back and lose nothing, such as a drain. It
    cannot register, because prompts go to every registered address. `ADMIN` makes every change.
    """

    READ = "read"
    REGISTER = "register"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, needed: Role) -> bool:
        """Return whether this role allows what `needed` allows."""
        return self in (needed, Role.ADMIN) or (self is Role.OPERATE and needed is Role.READ)


_LINE = re.compile(rf"({NAME.pattern})[ \t]+({'|'.join(Role)})[ \t]+{_HASHED.pattern}")


class AdminCaller(NamedTuple):
    """The name and the role of the token that a request brought."""

    name: str
    role: Role


class TokenEntry(NamedTuple):
    name: str
    role: Role
    digest: bytes

    @property
    def line(self) -> str:
        return f"{self.name} {self.role} sha256:{self.digest.hex()}"


class TokenSettings(NamedTuple):
    """The settings of the same names, without the prefix. `token` and `file` are not both set."""

    token: str | None
    file: str | None
    entries: tuple[str, ...] = ()
    entries_file: str | None = None

    @classmethod
    def of(cls, config: Config) -> TokenSettings:
        return cls(config.admin_token, config.admin_token_file, config.admin_tokens, config.admin_tokens_file)

    @property
    def given(self) -> bool:
        return self.token is not None or self.file is not None or bool(self.entries) or self.entries_file is not None


def parse_token(line: str) -> TokenEntry:
    """Parse one line of the file.

    Raises:
        ValueError: it is not an entry. The message does not show the line, which may be a token.
    """
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise ValueError("is not NAME ROLE sha256:HEX, with the role read, register, operate or admin")
    return TokenEntry(found[1], Role(found[2]), bytes.fromhex(found[3]))


def parse_tokens_file(path: str) -> list[TokenEntry]:
    """Return the entries of a file; see `entries_of`."""
    return entries_of("admin_tokens_file", path, "NAME ROLE sha256:HEX", parse_token, _MAKE_ONE)


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


class AdminTokens:
    """The tokens that the admin port accepts. Kept as digests, each compared in constant time.

    Raises:
        UnusableFileError: the settings or a file cannot be used.
    """

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._entries = self._read()

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file for file in (self._settings.file, self._settings.entries_file) if file is not None)

    def load(self) -> None:
        """Read the files again.

        Raises:
            UnusableFileError: one cannot be used; the tokens stay as they were.
        """
        self._entries = self._read()

    def _read(self) -> tuple[TokenEntry, ...]:
        settings = self._settings
        given = ((f"admin_tokens[{index}]", line) for index, line in enumerate(settings.entries))
        entries = [*self._single(), *parsed("admin_tokens", given, parse_token, _MAKE_ONE)]
        if settings.entries_file is not None:
            entries += parse_tokens_file(settings.entries_file)
        _check_unique(entries, "admin_tokens_file" if settings.entries_file is not None else "admin_tokens")
        return tuple(entries)

    def _single(self) -> Iterator[TokenEntry]:
        token, file = self._settings[:2]
        if token is not None:
            yield TokenEntry(SINGLE, Role.ADMIN, _digest("admin_token", token))
        if file is not None:
            fix = "write the path of a file that holds the token, or its sha256:HEX, and nothing else"
            text = read_text("admin_token_file", file, fix).strip()
            yield TokenEntry(SINGLE, Role.ADMIN, _digest("admin_token_file", text))

    def caller_of(self, authorization: str) -> AdminCaller | None:
        """Return whose token the value of an Authorization header carries, or None. Takes the same time for each."""
        scheme, _, token = authorization.partition(" ")
        given = digest_of(token.strip().encode("latin-1", "replace"))
        # a list: the comparison must not end at the entry that is equal
        equal = [entry for entry in self._entries if hmac.compare_digest(given, entry.digest)]
        return AdminCaller(equal[0].name, equal[0].role) if equal and scheme.lower() == "bearer" else None


def _check_unique(entries: Iterable[TokenEntry], setting: str) -> None:
    """Refuse a token with two names, and a name with two roles. A name may have two tokens during a rotation."""
    roles: dict[str, Role] = {}
    names: dict[bytes, str] = {}
    for entry in entries:
        if names.setdefault(entry.digest, entry.name) != entry.name:
            problem = f"{entry.name} has the token of {names[entry.digest]}"
            raise UnusableFileError(setting, problem, "give each its own")
        if roles.setdefault(entry.name, entry.role) != entry.role:
            problem = f"{entry.name} has the roles {roles[entry.name]} and {entry.role}"
            raise UnusableFileError(setting, problem, "give it one role, or two names")


def admin_tokens(config: Config) -> AdminTokens | None:
    """Return the tokens that `config` names, or None if the port needs none.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    settings = TokenSettings.of(config)
    return AdminTokens(settings) if settings.given else None


def guard_of(config: Config, files: FileWatch) -> tuple[AdminTokens | None, ssl.SSLContext | None]:
    """Return the tokens and the TLS context of the admin port, None for each that is not set. `files` reloads both.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    tokens, tls = admin_tokens(config), serving_tls(config.admin_tls)
    files.add("admin_token", tokens)
    files.add("admin_tls", tls)
    return tokens, tls.context if tls is not None else None
