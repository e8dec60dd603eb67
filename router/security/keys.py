"""API keys of the public port. Only their SHA-256 digests are kept, in memory and in the file.

A generated key holds 256 random bits, which nobody can guess, so a plain hash makes a stolen file useless. Slow hashes
(scrypt, argon2) protect passwords that people choose, and would cost every request milliseconds.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from router.config.model import AuthConfig
from router.errors import ErrorKind, RequestError
from router.security.file_problem import UnusableFileError, read_text

PREFIX = "wr-"
"""Prefix of generated keys, for scanners that look for leaked ones in code and logs."""
_RANDOM_BYTES = 32
LEAST_CHARACTERS = 22
"""Minimum length of a key from elsewhere: 128 bits if drawn from letters, digits, ``-`` and ``_``."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LINE = re.compile(rf"({NAME.pattern})[ \t]+sha256:([0-9a-f]{{64}})")
_START_BYTES = 8
E = TypeVar("E")
_NO_KEY = "no API key given; send it as Authorization: Bearer KEY"
_WRONG_KEY = "the API key given is not known here"
_MAKE_ONE = "make one with `warmroute keys new NAME`"


class KeyEntry(NamedTuple):
    name: str
    digest: bytes

    @property
    def line(self) -> str:
        return f"{self.name} sha256:{self.digest.hex()}"


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(key: bytes) -> bytes:
    return sha256(key).digest()


def parse_entry(line: str) -> KeyEntry:
    """Parse one line of the file.

    Raises:
        ValueError: it is not an entry. The message does not show the line, which may be a key.
    """
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise ValueError("is not NAME sha256:HEX")
    return KeyEntry(found[1], bytes.fromhex(found[2]))


def parse_file(path: str) -> list[KeyEntry]:
    """Return the entries of a file; see `entries_of`."""
    return entries_of("api_keys_file", path, "NAME sha256:HEX", parse_entry, _MAKE_ONE)


def entries_of(setting: str, path: str, form: str, parse: Callable[[str], E], fix: str) -> list[E]:
    """Return the entries of a file: one per line, without empty lines and lines that start with #.

    Raises:
        UnusableFileError: with the number of the line.
    """
    lines = read_text(setting, path, f"write the path of a file with one {form} per line").splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and line.lstrip()[0] != "#"]
    return list(parsed(setting, ((f"{path}:{number}", line) for number, line in numbered), parse, fix))


def parsed(setting: str, lines: Iterable[tuple[str, str]], parse: Callable[[str], E], fix: str) -> Iterator[E]:
    """Parse lines, each with its place.

    Raises:
        UnusableFileError: with the place of a line that is not an entry.
    """
    for place, line in lines:
        try:
            yield parse(line)
        except ValueError as error:
            raise UnusableFileError(setting, f"{place} {error}", fix) from None


def problems_of(config: AuthConfig) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Find mistakes in the settings, each with its place in their section."""
    seen: dict[bytes, str] = {}
    for index, line in enumerate(config.api_keys):
        try:
            entry = parse_entry(line)
        except ValueError as error:
            yield ("api_keys", index), f"api_keys[{index}] {error}", _MAKE_ONE
            continue
        if seen.setdefault(entry.digest, entry.name) != entry.name:
            yield ("api_keys", index), f"{entry.name} has the key of {seen[entry.digest]}", "give each its own"
    if config.api_keys_file is not None:
        try:
            _by_start([*map(parse_entry, config.api_keys), *parse_file(config.api_keys_file)])
        except ValueError:
            pass  # a mistake in api_keys, reported above
        except UnusableFileError as error:
            yield (error.setting,), error.problem, error.fix


def _by_start(entries: Iterable[KeyEntry]) -> dict[bytes, tuple[KeyEntry, ...]]:
    """Group entries by the first bytes of the digest.

    The timing of the lookup by these bytes reveals nothing useful, and the rest of the digest is compared in constant
    time.
    """
    found: dict[bytes, tuple[KeyEntry, ...]] = {}
    for entry in entries:
        same = found.get(entry.digest[:_START_BYTES], ())
        other = next((each.name for each in same if each.digest == entry.digest and each.name != entry.name), None)
        if other is not None:
            raise UnusableFileError("api_keys_file", f"{entry.name} has the key of {other}", "give each its own")
        found[entry.digest[:_START_BYTES]] = (*same, entry)
    return found


class ApiKeys:
    """The valid keys. A name may have several during a rotation.

    Raises:
        UnusableFileError: a file cannot be used.
    """

    def __init__(self, config: AuthConfig) -> None:
        self._given = tuple(map(parse_entry, config.api_keys))
        self._file = config.api_keys_file
        self._entries = self._read()

    @property
    def files(self) -> tuple[str, ...]:
        return () if self._file is None else (self._file,)

    def load(self) -> None:
        """Read the file again. Its keys are valid from the next request.

        Raises:
            UnusableFileError: it cannot be used; the keys stay as they were.
        """
        self._entries = self._read()

    def _read(self) -> dict[bytes, tuple[KeyEntry, ...]]:
        return _by_start([*self._given, *(parse_file(self._file) if self._file is not None else ())])

    @property
    def names(self) -> frozenset[str]:
        return frozenset(entry.name for entries in self._entries.values() for entry in entries)

    def name_of(self, key: bytes) -> str | None:
        """Return the name of a valid key, or None."""
        digest = digest_of(key)
        for entry in self._entries.get(digest[:_START_BYTES], ()):
            if hmac.compare_digest(entry.digest, digest):
                return entry.name
        return None

    def statistics(self) -> dict[str, Any]:
        return {"keys": sum(map(len, self._entries.values()))}


def presented(fields: Mapping[bytes, bytes]) -> bytes | None:
    """Return the key in a request: a bearer token, or else x-api-key, which Anthropic's clients send."""
    authorization = fields.get(b"authorization")
    if authorization is None:
        return fields.get(b"x-api-key")
    scheme, _, key = authorization.partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None


def let_in(keys: ApiKeys, fields: Mapping[bytes, bytes]) -> str:
    """Return the name of a request's key.

    Raises:
        RequestError: the request has no key, or an unknown one.
    """
    key = presented(fields)
    name = keys.name_of(key) if key is not None else None
    if name is None:
        raise RequestError(ErrorKind.INVALID_API_KEY, _WRONG_KEY if key is not None else _NO_KEY)
    return name


def api_keys(config: AuthConfig) -> ApiKeys | None:
    """Return the keys of `config`, or None if the port is open to all.

    Raises:
        UnusableFileError: a file cannot be used.
    """
    return ApiKeys(config) if config.api_keys or config.api_keys_file is not None else None
