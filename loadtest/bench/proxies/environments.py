"""One virtual environment per program from PyPI, created when it is first needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.proxies.entrant import NotInstalled

INSTALL_LIMIT_S = 900.0
_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution on PyPI at the version that is measured."""

    distribution: str
    version: str
    extra: str = ""

    @property
    def requirement(self) -> str:
        """The requirement in pip's notation."""
        return f"{self.distribution}{self.extra}=={self.version}"


def prepare(parent: Path, package: Package, say: Callable[[str], None]) -> Path:
    """Return the environment of `package` under `parent`; create it if it does not exist.

    Raises:
        NotInstalled: the environment could not be created; the message has the last line of pip's output.
    """
    folder = parent.absolute() / package.distribution
    if _installed(folder, package):
        return folder
    say(f"installing {package.requirement} in {folder}")
    _run([sys.executable, "-m", "venv", str(folder)])
    quiet = ["--quiet", "--disable-pip-version-check", "--prefer-binary"]
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", *quiet, package.requirement])
    return folder


def _installed(folder: Path, package: Package) -> bool:
    command = [str(folder / "bin" / "python"), "-c", _VERSION, package.distribution]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.strip() == package.version


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"not installed: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise NotInstalled(f"not installed: {lines[-1][:200]}")
