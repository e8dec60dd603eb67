"""Names of rules on the command line: NAME, or NAME:key=value:key=value with parameters."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from policies.registry import PolicyError, build_policy


def parse_policy(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters. A value is parsed as JSON if it is JSON (numbers, true), else kept as text.

    Raises:
        PolicyError: a parameter has no value.
    """
    name, *pairs = text.split(":")
    params = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise PolicyError(name, pair, "has no value", f"write {name}:{pair}=VALUE")
        params[key] = _value(value)
    return name, params


def check_policy(text: str) -> None:
    """Check that the policy can be built.

    Raises:
        PolicyError: it cannot be built.
    """
    name, params = parse_policy(text)
    build_policy(name, params, random.Random(0))


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
