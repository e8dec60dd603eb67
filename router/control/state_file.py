"""The desired state on disk: one file in `state_dir`, replaced as a whole, with its history."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from router.config.problems import ConfigError, Problem
from router.control.desired_state import DesiredState, LiveSettings
from router.control.revisions import Revision
from router.control.sharing import SharedChanges

NAME = "state.json"
_PRIVATE_FILE = 0o600
"""The file has the workers' keys."""
_PRIVATE_FOLDER = 0o700

_Signature = tuple[int, int, int] | None


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept: the desired state, the settings that it was merged from, and the history, oldest first."""

    format: Literal[1] = 1
    state: DesiredState
    file: LiveSettings
    revisions: tuple[Revision, ...]
    shared: SharedChanges | UnsetType = UNSET
    """The document that the gateways of a fleet share, as last seen."""


class NotSavedError(Exception):
    """The state could not be written. The message names the file and the reason."""


def encode(stored: Stored) -> bytes:
    """Return the text of the file: indented JSON, which people can read."""
    return msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"


def decode(text: bytes) -> Stored:
    """Return what a file holds.

    Raises:
        ValueError: it is not the text of a state file.
    """
    try:
        return msgspec.json.decode(text, type=Stored)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


class StateFile:
    """Read and write ``state.json`` in a folder. One gateway at a time writes it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.path = self._folder / NAME
        self._seen: _Signature = None
        """The file as this process last read or wrote it."""

    def load(self) -> Stored | None:
        """Make the folder if it is missing, and read the file. Return None if there is no file.

        Raises:
            ConfigError: the folder or the file cannot be used. Nothing was changed.
        """
        try:
            self._folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
            if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
                raise _problem("state_dir", f"{str(self._folder)!r} cannot be written to", "write a folder that can")
            self._seen = _signature(self.path)
            return decode(self.path.read_bytes())
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
            fix = "restore the file from a backup, or move it away to start from the settings alone"
            raise _problem(str(self.path), f"not a state that this version can read: {error}", fix) from None

    def owned(self) -> None:
        """Record that the process which wrote the file so far has handed over its content."""
        self._seen = _signature(self.path)

    def save(self, stored: Stored) -> None:
        """Replace the file. After a crash at any moment it has the old state or the new one.

        Raises:
            NotSavedError: the file stays as it was.
        """
        if _signature(self.path) != self._seen:
            raise NotSavedError(f"{self.path} was changed by another process; give each gateway its own state_dir")
        new = self.path.with_suffix(".new")
        try:
            _write(new, encode(stored))
            os.replace(new, self.path)
            _sync_folder(self._folder)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise NotSavedError(f"{self.path}: {error.strerror}") from None
        self._seen = _signature(self.path)


def _problem(place: str, problem: str, fix: str) -> ConfigError:
    return ConfigError([Problem(place, problem, fix)])


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
