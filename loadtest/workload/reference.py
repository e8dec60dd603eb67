"""The reference page on workloads, made from code: ``python -m loadtest.workload.reference [FILE]`` writes it."""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import Any

from loadtest.workload.generators.registry import SHAPES, Parameter, common_parameters, own_parameters
from loadtest.workload.generators.shape import Shape
from loadtest.workload.schemas.known import SCHEMAS
from loadtest.workload.schemas.schema import Schema
from loadtest.workload.source import FORM

_HEAD = f"""\
# Workloads

This page is made by `python -m loadtest.workload.reference`; a test holds it to the code.

Wherever a command takes `--trace {FORM}`, it takes a recorded trace or traffic drawn from
a seed. Either is planned before the run: sessions of calls, each with its prompt (which text it is made of, so that
what it shares with others is known), its answer's length, the pause before it and its kind, by which measures can be
split. Every rule is asked the same, seed for seed. Calls of a session wait for the answer before them (a closed loop);
sessions arrive when the plan says (an open loop). At another load only arrivals come faster: people and tools do not.

What a seed varies: of a trace, where in it a run's window begins and where within their tick rows arrive; of a
generator, everything. Equal seeds give equal plans, on every machine. A trace shorter than the window is taken whole,
and calls that not even immediate answers would bring into the window are left out. Where rows are calls of their own
(`mooncake`, `burstgpt`, `azure`) all loads have the same calls, sooner or later. Of a trace of sessions (`bailian`,
`sessions`) a higher load has more sessions in a window that is as long, and each gets as far as at a lower one; none is
under way when the window begins.

## Traces

Plain, `.gz`, or `.zst` (which needs the `zstd` command). The schema is recognised by the fields of the first row,
whatever the file is called; other fields are passed over. All rows are checked before a run begins, and what is wrong
is reported with its row. A file is read through and not held: memory goes by the window that is drawn.

Where rows share timestamps and all of these stand on ticks one to ten seconds apart, they were rounded, and rows are
spread evenly within their tick by the seed: otherwise a thundering herd is measured that nobody sent. Of a prompt with
block hashes only full blocks can be reused; answers are text that no row names.

"""

_GENERATORS = """\

## Generators

`generator:agents:rate_per_s=0.1,context_tokens=128000`: a name, and parameters that are not to have their defaults.
`low_x` and `high_x` are the ends of a range whose every value is as likely; `x_p50` and `x_p90` are the median and the
90th percentile of a log-normal distribution, which is cut at ten times the latter. All generators have:

"""


def page() -> str:
    """Return the whole page."""
    schemas = [line for schema in SCHEMAS for line in _schema(schema)]
    shapes = [line for name, shape in SHAPES.items() for line in _shape(name, shape)]
    common = _table(common_parameters())
    return _HEAD + "\n".join(schemas) + "\n" + _GENERATORS + "\n".join([*common, *shapes]) + "\n"


def _schema(schema: Schema[Any]) -> list[str]:
    text = inspect.getdoc(inspect.getmodule(schema.row_type)) or ""
    return [f"### `{schema.name}`", "", text.replace("``", "`"), ""]


def _shape(name: str, shape: type[Shape]) -> list[str]:
    kinds = ", ".join(f"`{kind}`" for kind in shape.kinds)
    text = inspect.getdoc(shape) or ""
    return ["", f"### `{name}`", "", text, "", f"Kinds of calls: {kinds}.", "", *_table(own_parameters(shape))]


def _table(listed: list[Parameter]) -> list[str]:
    rows = (f"| `{one.name}` | {one.type} | `{one.default:.10g}` | {one.allowed} | {one.about} |" for one in listed)
    return ["| parameter | type | default | allowed | meaning |", "| --- | --- | --- | --- | --- |", *rows]


def main(arguments: list[str]) -> int:
    """Write the page (default ``docs/reference/workloads.md``)."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.workload.reference", description="Writes the page.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/reference/workloads.md"))
    parser.parse_args(arguments).file.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
