"""Rows of a file, checked by a schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from loadtest.workload.errors import TraceError
from loadtest.workload.rows import records
from loadtest.workload.schemas.schema import RowT, Schema


def typed_rows(path: Path, schema: Schema[RowT]) -> Iterator[tuple[int, RowT]]:
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
