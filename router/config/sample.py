"""The commented sample file, made from the settings' types, defaults and descriptions."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import inspect as kinds

from router.config import model
from router.config.model import Config
from router.config.schema import bare, optional, root, wanted
from router.config.sources.environment import CONFIG_FILE, variable

_HEAD = f"""\
Every setting of Warmroute with its default. Remove the # before a setting to change it.
Made by `warmroute config --sample yaml`; do not edit the copy in docs/.

A flag beats an environment variable, that beats this file, and this file beats the default. Any setting is
reachable as a flag (--set timeouts.connect_s=1) and as a variable ({variable(("timeouts", "connect_s"))}=1);
lists in a variable are comma-separated or JSON, mappings are JSON. {CONFIG_FILE} names this file.
Relative paths start at the folder that the process runs in."""

_EXAMPLES: dict[tuple[str, ...], Any] = {
    ("uds",): "/run/warmroute/public.sock",
    ("auth", "api_keys"): ["alice sha256:" + 64 * "0"],
    ("tenants",): {"search": {"keys": ["alice"], "max_queued_requests": 100, "max_buffered_body_bytes": 100_000_000}},
    ("workers",): [
        {"url": "http://10.0.0.5:8000"},
        {
            "url": "http://10.0.0.6:8000",
            "kv_events": {"endpoint": "tcp://10.0.0.6:5557", "replay_endpoint": "tcp://10.0.0.6:5558", "topic": ""},
            "api_key": "what-vllm-got-as---api-key",
            "labels": {"lane": "prefill"},
        },
    ],
    ("model_dir",): "/models/Llama-3.1-8B-Instruct",
    ("tokenizer",): "/models/Llama-3.1-8B-Instruct/tokenizer.json",
    ("models",): {"my-model": {"dir": "/models/my-model", "chat_template": "/models/my-template.jinja"}},
    ("cors", "allow_origins"): ["https://chat.example"],
    ("extra_paths",): [{"path": "/v1/my_path", "methods": ["POST"]}],
    ("trusted_proxies",): ["10.0.0.0/8"],
    ("admin_hosts",): ["router.example"],
}
"""What to show where the default is empty."""


def sample_yaml() -> str:
    """The sample file's text."""
    lines = [f"# {line}".rstrip() for line in _HEAD.splitlines()]
    return "\n".join([*lines, *_section(root(), msgspec.to_builtins(Config()), ())]) + "\n"


def _section(kind: kinds.StructType, defaults: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    indent = "  " * len(path)
    for field in kind.fields:
        here = (*path, field.name)
        inner = bare(field.type)
        if not path:
            yield ""
        yield from _comment(descriptions(kind.cls)[field.name], indent)
        if isinstance(inner, kinds.StructType) and not optional(field.type):
            yield f"{indent}{field.name}:"
            yield from _section(inner, defaults[field.name], here)
        else:
            if isinstance(inner, kinds.LiteralType):
                yield f"{indent}# {wanted(inner).capitalize()}."
            yield from _setting(here, defaults[field.name], indent)


def _setting(path: tuple[str, ...], default: Any, indent: str) -> Iterator[str]:
    example = _EXAMPLES.get(path)
    if example is not None and not default:
        yield f"{indent}# {'Not set' if default is None else 'Empty'} by default; for example:"
    for line in _yaml(path[-1], default if example is None else example):
        yield f"{indent}#{line}"


def _yaml(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        yield f"{key}:"
        for name, item in value.items():
            yield from (f"  {line}" for line in _yaml(name, item))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        yield f"{key}:"
        for item in value:
            lines = [line for name, part in item.items() for line in _yaml(name, part)]
            yield from (("  - " if index == 0 else "    ") + line for index, line in enumerate(lines))
    else:
        yield f"{key}: {json.dumps(value)}"


def _comment(text: str, indent: str) -> Iterator[str]:
    yield from textwrap.wrap(text, 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


@cache
def descriptions(section: type) -> dict[str, str]:
    """The string under each field of a section of `router.config.model`."""
    body = next(node for node in _model_classes() if node.name == section.__name__).body
    found: dict[str, str] = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = inspect.cleandoc(ast.literal_eval(below.value))
    return found


@cache
def _model_classes() -> tuple[ast.ClassDef, ...]:
    tree = ast.parse(inspect.getsource(model))
    return tuple(node for node in tree.body if isinstance(node, ast.ClassDef))
