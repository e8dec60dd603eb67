"""The desired state on disk: one file in `state_dir`, replaced as a whole, with its history."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec import inspect as kinds
from msgspec.structs import replace

from backends.foreign_json import read_json
from router.config.problems import ConfigError, Problem
from router.control.sharing import SharedChanges
from router.control.state.desired_state import DesiredState, LiveSettings
from router.control.state.revisions import Revision

NAME = "state.json"
_PRIVATE_FILE = 0o600
"""The file has the workers' keys."""
_PRIVATE_FOLDER = 0o700
FORMAT = 1
SET_ASIDE_KEPT = 10
"""Files that are kept under another name. With a further one, the oldest goes."""
MOST_BYTES = 256 << 20
"""A larger file is not read. The history has 8 MiB at most, and a fleet of 20,000 workers 20 MB."""
_NAMED = 5

log = logging.getLogger("warmroute.control")

_Signature = tuple[int, int, int] | None
Place = tuple[str, ...]


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept: the desired state, the settings that it was merged from, and the history, oldest first."""

    format: Annotated[int, Meta(ge=1)] = FORMAT
    state: DesiredState
    file: LiveSettings
    revisions: tuple[Revision, ...]
    shared: SharedChanges | UnsetType = UNSET
    """The document that the gateways of a fleet share, as last seen."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a text holds. `ignored` are the places that this version does not know, in words; empty without any."""

    stored: Stored
    ignored: str = ""


class NotSavedError(Exception):
    """The state could not be written. The message names the file and the reason."""


def encode(stored: Stored) -> bytes:
    """Return the text of the file: indented JSON, which people can read."""
    return msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"


def decode(text: bytes) -> Decoded:
    """Return what a file holds, without what another version has added to it.

    Raises:
        ValueError: it is not the text of a state file.
    """
    try:
        with suppress(msgspec.ValidationError):
            stored = read_json(text, Stored)
            if stored.format == FORMAT:
                return Decoded(stored)
        tree, unknown = _without_unknown(read_json(text), kinds.type_info(Stored))
        stored = msgspec.convert(tree, Stored)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    places = [".".join(path) for path in unknown]
    if stored.format != FORMAT:
        places.insert(0, f"format {stored.format}")
    more = f", and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return Decoded(replace(stored, format=FORMAT), ", ".join(places[:_NAMED]) + more)


class StateFile:
    """Read and write ``state.json`` in a folder. One gateway at a time writes it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.path = self._folder / NAME
        self._seen: _Signature = None
        """The file as this process last read or wrote it."""
        self._unread: str | None = None
        """What of the file was not read, or why nothing was; None if all was."""
        self._damaged = False
        self.set_aside = 0
        """Files that this process could not use in whole, and kept under another name."""

    def load(self) -> Stored | None:
        """Make the folder if it is missing, and read the file. Return None if there is no file that can be read.

        Raises:
            ConfigError: the folder or the file cannot be used. Nothing was changed.
        """
        try:
            self._folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
            if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
                raise _problem("state_dir", f"{str(self._folder)!r} cannot be written to", "write a folder that can")
            self._seen = _signature(self.path)
            decoded = decode(_read(self.path))
            if decoded.ignored:
                self._unread = f"written by another version, and this one ignores {decoded.ignored}"
            return decoded.stored
        except FileNotFoundError:
            if self._folder.is_dir():
                return None
            raise _problem(
                "state_dir", f"the folder of {str(self._folder)!r} does not exist", "write a path in an existing folder"
            ) from None
        except OSError as error:
            fix = "write a folder that this user can read and write"
            raise _problem("state_dir", f"{error.filename}: {error.strerror}", fix) from None
        except ValueError as error:
            self.refuse(f"not a state that this version can read: {error}")
            return None

    def refuse(self, reason: str) -> None:
        """Use nothing of the file. The next save sets it aside, and logs `reason`."""
        self._unread, self._damaged = reason, True

    def owned(self) -> None:
        """Record that the process which wrote the file so far has handed over its content."""
        self._seen = _signature(self.path)
        self._unread = None

    def save(self, stored: Stored) -> None:
        """Replace the file. After a crash at any moment it has the old state or the new one. A file that was not read
        in whole is set aside first.

        Raises:
            NotSavedError: the file stays as it was.
        """
        if _signature(self.path) != self._seen:
            raise NotSavedError(f"{self.path} was changed by another process; give each gateway its own state_dir")
        new = self.path.with_suffix(".new")
        try:
            _write(new, encode(stored))
            self._keep_unread()
            os.replace(new, self.path)
            _sync_folder(self._folder)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise NotSavedError(f"{self.path}: {error.strerror}") from None
        self._seen = _signature(self.path)

    def _keep_unread(self) -> None:
        if self._unread is None:
            return
        at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = self.path.with_name(f"{self.path.stem}.unread-{at}.json")
        os.rename(self.path, aside)
        self._seen, reason, self._unread = None, self._unread, None
        self.set_aside += 1
        for oldest in sorted(self._folder.glob(f"{self.path.stem}.unread-*.json"))[:-SET_ASIDE_KEPT]:
            oldest.unlink()
        fields = {"file": str(self.path), "kept_as": str(aside), "reason": reason}
        if self._damaged:
            log.error("the kept changes cannot be used; the gateway starts from the settings", extra=fields)
        else:
            log.warning("a part of the kept changes is ignored", extra=fields)


def _problem(place: str, problem: str, fix: str) -> ConfigError:
    return ConfigError([Problem(place, problem, fix)])


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return text


def _write(path: Path, text: bytes) -> None:
    with suppress(FileNotFoundError):
        path.unlink()  # left by a crash
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    with open(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _without_unknown(value: Any, kind: kinds.Type) -> tuple[Any, list[Place]]:
    """Return a decoded JSON value without the members that the structs in `kind` lack, and the paths of these."""
    left_out: list[Place] = []
    return _known(value, kind, (), left_out), left_out


def _known(value: Any, kind: kinds.Type, path: Place, left_out: list[Place]) -> Any:
    match kind, value:
        case kinds.Metadata(type=inner), _:
            return _known(value, inner, path, left_out)
        case kinds.UnionType(types=types), _:
            return _known(value, next(filter(_container, types), kinds.AnyType()), path, left_out)
        case kinds.StructType(fields=fields), dict():
            members = {field.encode_name: field.type for field in fields}
            left_out += [(*path, name) for name in value if name not in members]
            return {
                name: _known(one, members[name], (*path, name), left_out)
                for name, one in value.items()
                if name in members
            }
        case kinds.DictType(value_type=inner), dict():
            return {name: _known(one, inner, (*path, name), left_out) for name, one in value.items()}
        case kinds.ListType(item_type=inner) | kinds.VarTupleType(item_type=inner), list():
            return [_known(one, inner, (*path, str(index)), left_out) for index, one in enumerate(value)]
        case _:
            return value


def _container(kind: kinds.Type) -> bool:
    return isinstance(kind, kinds.StructType | kinds.DictType | kinds.ListType | kinds.VarTupleType)
