"""Errors about a file or a line that cannot be used."""

from __future__ import annotations

from pathlib import Path


class UnusableFileError(Exception):
    """`setting` names the key within its section, and `fix` starts with a verb. Neither contains a secret."""

    def __init__(self, setting: str, problem: str, fix: str) -> None:
        super().__init__(f"{setting}: {problem}; {fix}")
        self.setting = setting
        self.problem = problem
        self.fix = fix


def read_file(setting: str, path: str, fix: str) -> bytes:
    """Return the content of the file that `setting` names.

    Raises:
        UnusableFileError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        said = (getattr(error, "strerror", None) or str(error)).lower()
        raise UnusableFileError(setting, f"cannot read {path!r}: {said}", fix) from None


def read_text(setting: str, path: str, fix: str) -> str:
    """Return the content of the file that `setting` names, as text.

    Raises:
        UnusableFileError: it cannot be read, or is not text.
    """
    try:
        return read_file(setting, path, fix).decode()
    except UnicodeDecodeError:
        raise UnusableFileError(setting, f"{path!r} is not UTF-8 text", fix) from None
