"""Models in the cache that all of Hugging Face's programs share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from router.hub.fetcher import is_hub_name


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder in which huggingface_hub keeps models, from its own environment variables."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"])
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expanduser(home)) / "hub"


def cached_snapshot(hub: Path, name: str) -> Path | None:
    """Return the folder of model `name` (org/model) at its main revision in a hub cache, if it has a tokenizer."""
    if not is_hub_name(name):
        return None
    home = hub / f"models--{name.replace('/', '--')}"
    try:
        revision = (home / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = home / "snapshots" / revision
    return folder if revision and "/" not in revision and (folder / "tokenizer.json").is_file() else None
