"""A proxy whose program the machine has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.proxies.entrant import Entrant, Missing, Place, Proxy, running
from loadtest.fleet.ports import free_ports

Arguments = Callable[[Place, int], list[str]]
"""Writes the configuration for a place and the proxy's port. Returns the arguments of the program."""


def installed(
    name: str, install: str, setup: str, arguments: Arguments, version: str = "-v", folder: Path | None = None
) -> Entrant | Missing:
    """Return the proxy if its program is installed, on PATH or in `folder`.

    `version` is the argument that prints the version.
    """
    # An ordinary user's PATH lacks the last two folders.
    folders = (os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *([] if folder is None else [str(folder)]))
    binary = shutil.which(name, path=os.pathsep.join(folders))
    if binary is None:
        return Missing(name, f"not installed ({install})")
    said = subprocess.run([binary, version], capture_output=True, text=True, check=False)
    found = re.search(r"[/ ](\d+\.\d+\.\d+)", said.stdout + said.stderr)

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(1)
        with running(name, [binary, *arguments(place, port)], port, place.folder) as process:
            yield Proxy(name, f"http://127.0.0.1:{port}", process.pid)

    return Entrant(name, found[1] if found else "?", setup, start)
