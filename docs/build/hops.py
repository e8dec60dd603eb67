"""The hops of a chat in order, with the layers that are called at each, made from `router.requests.layer`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from router.gateway import layers as of_gateway
from router.requests import layers as of_every_front
from router.requests.layer import Layer, QueueFeature, Rewrite

HOPS = {
    "head and body are read": {"started"},
    "the prompt is identified": {"identified"},
    "a worker is chosen": {"queue", "decided"},
    "an attempt begins": {"attempted"},
    "the request is written to the worker": {"outgoing", "worker_lines", "takes_back"},
    "the answer begins": {"response_lines", "seam_comment"},
    "bytes are relayed": {"carried", "begun"},
    "the worker dies": {"resumption"},
    "the answer is complete": {"answered"},
    "the request has ended": {"ended"},
}
"""The points of a chat's way in order, and the hooks of `router.requests.layer` that are called there."""


def figure() -> Iterator[str]:
    """Yield a Mermaid flowchart: the hops from top to bottom, and beside each the layers that act there."""
    folders, named = _methods(), set().union(*HOPS.values())
    if named != set(_names()):
        raise ValueError(f"a method of a layer has no hop: {named ^ set(_names())}")
    yield "```mermaid\nflowchart TB"
    for number, (hop, methods) in enumerate(HOPS.items()):
        yield f'  h{number}["{hop}"]' + (f" --> h{number + 1}" if number + 1 < len(HOPS) else "")
        if acting := sorted(folder for folder, overridden in folders.items() if overridden & methods):
            yield f'  h{number} -.- l{number}(["{", ".join(acting)}"])'
    yield "```"


def _names() -> list[str]:
    methods = [name for kind in (Layer, Rewrite) for name, _ in inspect.getmembers(kind, inspect.isfunction)]
    return ["queue", *(name for name in methods if not name.startswith("_"))]


def _methods() -> dict[str, set[str]]:
    """Return the hooks that each folder of layers overrides."""
    found: dict[str, set[str]] = {}
    for layers in (of_every_front, of_gateway):
        (home,) = layers.__path__
        for folder in iter_modules([home]):
            if not (Path(home) / folder.name / "layer.py").exists():
                continue
            module = import_module(f"{layers.__name__}.{folder.name}.layer")
            for one in vars(module).values():
                if isinstance(one, type) and issubclass(one, (Layer, Rewrite, QueueFeature)):
                    own = set(vars(one)) if one.__module__ == module.__name__ else set()
                    found.setdefault(folder.name, set()).update(own & set(_names()))
    return found
