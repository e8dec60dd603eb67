"""All known schemas, and how to find the schema of a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from loadtest.workload.schemas import azure, bailian, burstgpt, mooncake, sessions
from loadtest.workload.schemas.schema import Schema

SCHEMAS: Sequence[Schema[Any]] = (
    mooncake.SCHEMA,
    bailian.SCHEMA,
    burstgpt.SCHEMA,
    azure.SCHEMA,
    sessions.SCHEMA,
)


def recognise(names: Iterable[str]) -> Schema[Any] | None:
    """Return the schema whose fields are all among `names`; the one with the most fields if several fit; else None."""
    given = list(names)
    fitting = [schema for schema in SCHEMAS if schema.fields <= schema.named(dict.fromkeys(given)).keys()]
    return max(fitting, key=lambda schema: len(schema.fields), default=None)


def described() -> str:
    """Return every schema with its fields, for error messages."""
    return "; ".join(f"{schema.name} ({', '.join(sorted(schema.fields))})" for schema in SCHEMAS)
