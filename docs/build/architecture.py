"""The figures of docs/architecture.md: who may import whom, the hops of a chat, and the states of a request."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from docs.build import hops, request_flow

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs/architecture.md"


def page() -> str:
    """Return the page with the figures of today."""
    text = FILE.read_text(encoding="utf-8")
    for name, container in (("the project", None), ("router", "router")):
        text = _with_figure(text, f"layers of {name}", f"```text\n{_layers(container)}\n```")
    text = _with_figure(text, "hops of a chat", "\n".join(hops.figure()))
    return _with_figure(text, "states of a request", "\n".join(request_flow.figure()))


def _with_figure(text: str, name: str, figure: str) -> str:
    return re.sub(rf"<!-- {name} -->\n```.*?\n```", f"<!-- {name} -->\n{figure}", text, flags=re.DOTALL)


def _layers(container: str | None) -> str:
    """Return the `layers` contract of pyproject.toml, one line a layer."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = (one for one in contracts if one["type"] == "layers" and one.get("containers", [None])[0] == container)
    return "\n".join(next(layers)["layers"])
