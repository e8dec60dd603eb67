"""The files that the command writes to --out, next to the finished cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec

from loadtest.lab.cell import code_version
from loadtest.lab.findings import Findings, verdict
from loadtest.lab.models import Models, flag
from loadtest.lab.report import plots
from loadtest.lab.report.tables import Sheet, markdown, sheets, summary


def write(folder: Path, findings: Findings) -> None:
    """Write results.json, the plots, and report.md, which shows them."""
    packed = msgspec.json.encode(as_json(findings))
    (folder / "results.json").write_bytes(msgspec.json.format(packed, indent=1) + b"\n")
    pictures = plots.draw(findings)
    for name, png in pictures.items():
        (folder / f"{name}.png").write_bytes(png)
    (folder / "report.md").write_text(page(findings, pictures), encoding="utf-8")


def as_json(findings: Findings) -> dict[str, Any]:
    """Return everything: the settings, load 1.0, every cell, and the comparison of the rules."""
    return {
        "code": code_version(),
        "trace": findings.study.trace,
        "setting": asdict(findings.study.setting),
        "load_1": asdict(findings.saturation),
        "round_robin": None if findings.round_robin is None else asdict(findings.round_robin),
        "standings": [
            {"load": load, "measure": measure.name, **asdict(standing), "verdict": verdict(standing)}
            for load in findings.loads
            for measure in findings.measures()
            for standing in findings.standings(measure, load)
        ],
        "cells": list(findings.results),
    }


def page(findings: Findings, pictures: Iterable[str]) -> str:
    """Return the page in Markdown: summary, pictures, tables."""
    parts = [
        "# Rules on a trace",
        summary(findings).replace("\n", "\n\n"),
        "\n".join(f"![{name}]({name}.png)" for name in pictures),
        *map(markdown, [*sheets(findings), _models(findings.study.setting.models)]),
        f"Code {code_version()}; every cell is in results.json.",
    ]
    return "\n\n".join(parts) + "\n"


def _models(models: Models) -> Sheet:
    values = {one.name: getattr(models, one.name) for one in fields(models)}
    rows = tuple(
        (flag(one), "the profile's" if values[one.name] is None else str(values[one.name]), one.metadata["help"])
        for one in fields(models)
    )
    return Sheet("models", ("flag", "value", "meaning"), rows)
