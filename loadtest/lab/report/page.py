"""The page in Markdown: summary, pictures, tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from loadtest.lab.cell import code_version
from loadtest.lab.findings import Findings
from loadtest.lab.models import Models, flag
from loadtest.lab.report.tables import Sheet, markdown, sheets, summary


def page(findings: Findings, pictures: Iterable[str]) -> str:
    parts = [
        "# Rules on a trace",
        summary(findings).replace("\n", "\n\n"),
        "\n".join(f"![{name}]({name}.png)" for name in pictures),
        *map(markdown, [*sheets(findings), _models(findings.setting.models)]),
        f"Code {code_version()}; every cell is in results.json.",
    ]
    return "\n\n".join(parts) + "\n"


def _models(models: Models) -> Sheet:
    rows = tuple((flag(one), _value(getattr(models, one.name)), one.metadata["help"]) for one in fields(models))
    return Sheet("models", ("flag", "value", "meaning"), rows)


def _value(value: object) -> str:
    return "the profile's" if value is None else str(value)
