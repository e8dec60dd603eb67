"""The files that the command writes to --out, next to the finished cells."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from loadtest.lab import page, plots
from loadtest.lab.cell import code_version
from loadtest.lab.findings import Findings, verdict
from loadtest.lab.store import Result


def write(folder: Path, findings: Findings) -> None:
    """Write results.json, cells.csv, the plots, and report.html, which contains the plots."""
    packed = msgspec.json.encode(as_json(findings))
    (folder / "results.json").write_bytes(msgspec.json.format(packed, indent=1) + b"\n")
    _write_cells(folder / "cells.csv", findings)
    pictures = plots.draw(findings)
    for name, png in pictures.items():
        (folder / f"{name}.png").write_bytes(png)
    (folder / "report.html").write_text(page.page(findings, pictures), encoding="utf-8")


def as_json(findings: Findings) -> dict[str, Any]:
    """Return everything: the settings, load 1.0, every cell, the comparison of the rules, and the sensitivity cells."""
    return {
        "code": code_version(),
        "trace": findings.trace,
        "setting": asdict(findings.setting),
        "load_1": asdict(findings.saturation),
        "round_robin": None if findings.round_robin is None else asdict(findings.round_robin),
        "standings": [
            {"load": load, "measure": measure.name, **asdict(standing), "verdict": verdict(standing)}
            for load in findings.loads
            for measure in findings.measures()
            for standing in findings.standings(measure, load)
        ],
        "cells": list(findings.results),
        "sensitivity": [{"variant": doubt.variant, "cells": list(doubt.results)} for doubt in findings.doubts],
    }


def _write_cells(path: Path, findings: Findings) -> None:
    """Write a line per cell and kind of call; kind "all" covers every call."""
    lines = [line for one in findings.results for line in _lines(one, "")]
    lines += [line for doubt in findings.doubts for one in doubt.results for line in _lines(one, doubt.variant)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def _lines(one: Result, variant: str) -> list[dict[str, object]]:
    cell, measures = one.cell, one.measures
    return [
        {
            "trace": cell["trace"],
            "policy": cell["policy"],
            "load": cell["load"],
            "rate": cell["rate"],
            "seed": cell["seed"],
            "variant": variant,
            "kind": kind,
            **msgspec.to_builtins(figures),
            "amplification": measures.amplification,
            "imbalance": measures.imbalance,
            "preemptions": measures.preemptions,
            "arrivals_per_s": measures.arrivals_per_s,
            "virtual_s": measures.virtual_s,
            **msgspec.to_builtins(one.measured),
            "digest": one.digest,
        }
        for kind, figures in {"all": measures.all, **measures.kinds}.items()
    ]
