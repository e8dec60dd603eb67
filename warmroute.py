"""Console entry point, and the guard for our generic package names.

Warmroute's import packages are called ``router``, ``policies``, ``backends`` and ``loadtest``. If another
distribution on the path uses one of these names, imports would mix; say which one before anything is imported.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("policies", "backends", "router", "loadtest")


def clashes() -> list[str]:
    """One line per package name that does not resolve to the folder this file lies in."""
    home = Path(__file__).resolve().parent
    found = []
    for name in PACKAGES:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or home not in origin.parents:
            found.append(f"package {name!r} resolves to {origin or 'nothing'}, expected {home / name}")
    return found


def main() -> int:
    """Run the ``warmroute`` command; returns the process exit code."""
    if found := clashes():
        lines = "\n  ".join(found)
        sys.stderr.write(
            "warmroute: another installed package or a folder on the path uses one of Warmroute's package names:\n"
            f"  {lines}\nInstall Warmroute in its own virtual environment, or run it from another folder.\n"
        )
        return 2
    if sys.argv[1:2] == ["worker"]:
        from router.cli.worker import main as run
    else:
        from router.cli.main import main as run
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
