"""The hops of a chat in order, with the layers that are called at each, made from `router.requests.layer`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from router.gateway import layers as of_gateway
from router.requests import layers as of_every_front
from router.requests.layer import Layer

HOPS = {
    "head and body are read": "started",
    "the prompt is identified": "identified",
    "a worker is chosen": "decided",
    "an attempt begins": "attempted",
    "the request is written to the worker": "worker_lines",
    "the answer begins": "response_lines",
    "bytes are relayed": "carried",
    "the request has ended": "ended",
}
"""The points of a chat's way in order, and the method of `Layer` that is called there."""


def figure() -> Iterator[str]:
    """Yield a Mermaid flowchart: the hops from top to bottom, and beside each the layers that act there."""
    called = {name: sorted(folder for folder, methods in _methods().items() if name in methods) for name in _names()}
    if set(called) != set(HOPS.values()):
        raise ValueError(f"a method of Layer has no hop: {set(called) ^ set(HOPS.values())}")
    yield "```mermaid\nflowchart TB"
    for number, (hop, method) in enumerate(HOPS.items()):
        yield f'  h{number}["{hop}"]' + (f" --> h{number + 1}" if number + 1 < len(HOPS) else "")
        if called[method]:
            yield f'  h{number} -.- l{number}(["{", ".join(called[method])}"])'
    yield "```"


def _names() -> list[str]:
    return [name for name, _ in inspect.getmembers(Layer, inspect.isfunction) if not name.startswith("_")]


def _methods() -> dict[str, set[str]]:
    """Return the methods of `Layer` that each folder of layers overrides."""
    found: dict[str, set[str]] = {}
    for layers in (of_every_front, of_gateway):
        (home,) = layers.__path__
        for folder in iter_modules([home]):
            if not (Path(home) / folder.name / "layer.py").exists():
                continue
            module = import_module(f"{layers.__name__}.{folder.name}.layer")
            for one in vars(module).values():
                if isinstance(one, type) and issubclass(one, Layer) and one is not Layer:
                    found.setdefault(folder.name, set()).update(set(vars(one)) & set(_names()))
    return found
