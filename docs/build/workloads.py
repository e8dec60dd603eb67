"""docs/reference/workloads.md."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from loadtest.workload.generators.registry import SHAPES
from loadtest.workload.generators.shape import Shape
from loadtest.workload.schemas.known import SCHEMAS
from loadtest.workload.schemas.schema import Schema
from loadtest.workload.source import FORM

_HEAD = f"""\
# Workloads

`python -m docs.build` generates this page; a test compares it with the code.

Wherever a command takes `--trace {FORM}`, it takes a recorded trace or traffic drawn from
a seed. The traffic is planned before the run, as sessions of calls. Each call has a prompt (as pieces of text, so that
shared text is known), the length of its answer, the pause before it, and a kind, by which measures can be split. For
one seed every rule gets the same calls. A call of a session waits for the answer before it (a closed loop); sessions
arrive when the plan says (an open loop). At another load only arrivals come faster; people and tools do not.

For a trace, the seed draws where the run's window begins, and the arrival of each row within its tick. For a generator
it draws everything. Equal seeds give equal plans, on every machine. A trace that is shorter than the window is taken
whole. Calls that would not fall into the window even after immediate answers are left out. If each row is a call of its
own (`mooncake`, `azure`), all loads have the same calls, sooner or later. With a trace of
`sessions` the window has the same length at every load. A higher load has more sessions in it, and each of
them gets as far as at a lower load. No session is in progress when the window begins.

## Traces

A file is plain, `.gz`, or `.zst` (which needs the `zstd` command). The fields of the first row decide its schema, not
the file's name; other fields are ignored. All rows are checked before a run begins, and an error names its row. A file
is read as a stream, so memory depends only on the window.

If rows share timestamps, and all timestamps are multiples of a tick of one to ten seconds, they were rounded. The seed
then spreads the rows evenly within their tick, because otherwise they would arrive all at once. Only full blocks of a
prompt with block hashes can be reused. No row contains the text of an answer.

"""

_GENERATORS = """\

## Generators

`generator:agents:rate_per_s=0.1,context_tokens=128000` is a name and the parameters that differ from their defaults.
`low_x` and `high_x` are the ends of a range in which all values are equally likely. `x_p50` and `x_p90` are the median
and the 90th percentile of a log-normal distribution, which is cut at ten times the latter. All generators have:

"""

_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def page() -> str:
    schemas = [line for schema in SCHEMAS for line in _schema(schema)]
    shapes = [line for name, shape in SHAPES.items() for line in _shape(name, shape)]
    common = _table(_parameters(Shape))
    return _HEAD + "\n".join(schemas) + "\n" + _GENERATORS + "\n".join([*common, *shapes]) + "\n"


def _schema(schema: Schema) -> list[str]:
    text = inspect.getdoc(inspect.getmodule(schema.row_type)) or ""
    return [f"### `{schema.name}`", "", text.replace("``", "`"), ""]


def _shape(name: str, shape: type[Shape]) -> list[str]:
    kinds = ", ".join(f"`{kind}`" for kind in shape.kinds)
    text = inspect.getdoc(shape) or ""
    own = {one: schema for one, schema in _parameters(shape).items() if schema != _parameters(Shape).get(one)}
    return ["", f"### `{name}`", "", text, "", f"Kinds of calls: {kinds}.", "", *_table(own)]


def _parameters(shape: type[Shape]) -> dict[str, dict[str, Any]]:
    """Return the schemas of a shape's parameters by name, its own first, the common ones last."""
    properties: dict[str, dict[str, Any]] = msgspec.json.schema_components([shape])[1][shape.__name__]["properties"]
    common = list(Shape.__struct_fields__)
    order = sorted(properties, key=lambda name: common.index(name) if name in common else -1)
    return {name: properties[name] for name in order}


def _table(listed: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for name, schema in listed.items():
        allowed = ", ".join(f"{sign} {schema[key]:,.10g}" for key, sign in _SIGNS.items() if key in schema)
        kind = {"integer": "int", "number": "float"}[schema["type"]]
        rows.append(f"| `{name}` | {kind} | `{schema['default']:.10g}` | {allowed} | {schema['description']} |")
    return ["| parameter | type | default | allowed | meaning |", "| --- | --- | --- | --- | --- |", *rows]
