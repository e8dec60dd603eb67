"""All known schemas, how to find the schema of a row, and the checked rows of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from loadtest.workload.errors import TraceError
from loadtest.workload.rows import records
from loadtest.workload.schemas import agentic, azure, bailian, burstgpt, mooncake, sessions, sized_blocks
from loadtest.workload.schemas.schema import Row, Schema

SCHEMAS: Sequence[Schema] = (
    mooncake.SCHEMA,
    sized_blocks.SCHEMA,
    bailian.SCHEMA,
    azure.SCHEMA,
    burstgpt.SCHEMA,
    sessions.SCHEMA,
    agentic.SCHEMA,
)


def recognise(names: Iterable[str]) -> Schema | None:
    """Return the schema whose fields are all among `names`; the one with the most fields if several fit; else None."""
    given = list(names)
    fitting = [schema for schema in SCHEMAS if schema.fields <= schema.named(dict.fromkeys(given)).keys()]
    return max(fitting, key=lambda schema: len(schema.fields), default=None)


def described() -> str:
    """Return every schema with its fields, for error messages."""
    return "; ".join(f"{schema.name} ({', '.join(sorted(schema.fields))})" for schema in SCHEMAS)


def typed_rows(path: Path, schema: Schema) -> Iterator[tuple[int, Row]]:
    """Yield every row with its number, from 1, read on demand.

    Raises:
        TraceError: the file cannot be read, or a row does not fit the schema.
    """
    with closing(records(path)) as rows:
        for number, record in rows:
            try:
                # Numbers of a CSV file are strings, which only the lax mode converts.
                yield number, msgspec.convert(schema.named(record), schema.row_type, strict=False)
            except (msgspec.ValidationError, ValueError) as error:
                raise TraceError.at_row(path, number, f"not as {schema.name} rows are: {error}") from None
