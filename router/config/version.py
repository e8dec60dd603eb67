"""The version of the distribution that runs."""

from __future__ import annotations

from importlib import metadata


def version(missing: str = "unknown") -> str:
    """Return it; `missing` in a checkout that is not installed."""
    try:
        return metadata.version("warmroute")
    except metadata.PackageNotFoundError:
        return missing
