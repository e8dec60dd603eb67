"""The command: saturation, the cells, and the files."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from backends.engine.profile import load_profile
from loadtest.lab import flags, tables
from loadtest.lab.cell import code_version
from loadtest.lab.findings import MEASURES, Findings, verdict
from loadtest.lab.progress import watched
from loadtest.lab.run_cell import RuleFailed
from loadtest.lab.saturation import SaturationError
from loadtest.lab.sources import drawn
from loadtest.lab.store import Store, StoreError
from loadtest.lab.study import Study
from loadtest.lab.sweep import SweepError
from loadtest.workload.errors import WorkloadError

RESULTS = "results.json"
INTERRUPTED = 130
"""The exit code that shells give a command that Ctrl-C has ended."""


class Refused(Exception):
    """The command cannot run like this; the message says what to correct."""


def guarded(console: Console, out: Path, play: Callable[[], None]) -> int:
    """Run a command that stores its cells in `out`, and return the exit code.

    It is 2 if the user has to correct something, which is printed, and 130 after Ctrl-C.
    """
    try:
        play()
    except (Refused, StoreError, SaturationError, RuleFailed, SweepError, WorkloadError) as error:
        console.print(str(error), style="red", highlight=False, markup=False)
        return 2
    except KeyboardInterrupt:
        console.print(f"\nstopped; what had finished is kept in {out}: the same command goes on from there")
        return INTERRUPTED
    return 0


def run(args: argparse.Namespace) -> int:
    console = Console()
    return guarded(console, args.out, lambda: _run(args, console))


def _run(args: argparse.Namespace, console: Console) -> None:
    wrong = flags.problem(args) or _unreadable(args)
    if wrong is not None:
        raise Refused(wrong)
    findings = _find(args, console, Store(args.out))
    (args.out / RESULTS).write_bytes(msgspec.json.format(msgspec.json.encode(_as_json(findings)), indent=1) + b"\n")
    wide = Console(width=max(console.width, tables.WIDTH))
    tables.print_findings(wide, findings)
    wide.print(f"{RESULTS} is in {args.out}", highlight=False, markup=False)


def _as_json(findings: Findings) -> dict[str, Any]:
    """Return the settings, load 1.0, every cell, and the comparison of the rules."""
    return {
        "code": code_version(),
        "study": findings.study,
        "load_1": findings.saturation,
        "standings": [
            {"load": load, "measure": measure.name, **asdict(standing), "verdict": verdict(standing)}
            for load in findings.loads
            for measure in MEASURES
            for standing in findings.standings(measure, load)
        ],
        "cells": findings.results,
    }


def _unreadable(args: argparse.Namespace) -> str | None:
    try:
        found = drawn(args.trace, args.first_seed, args.window_s, 1.0, args.block_tokens)
    except WorkloadError as error:
        return f"--trace: {error}"
    if not found.plan.sessions:
        return f"--trace {args.trace} has no session in the window of seed {args.first_seed}; make --window-s longer"
    return _no_room(args, found.plan.block_tokens)


def _no_room(args: argparse.Namespace, trace_block_tokens: int) -> str | None:
    """Return an error if the cache has no space for two blocks. vLLM never uses one, so a cache needs at least two."""
    kv_tokens = args.kv_tokens or load_profile(args.profile).kv_tokens
    block_tokens = args.block_tokens or trace_block_tokens
    if kv_tokens >= 2 * block_tokens:
        return None
    return (
        f"a KV cache of {kv_tokens} tokens has no room for two blocks of {block_tokens}; take more --kv-tokens"
        " or smaller --block-tokens"
    )


def _find(args: argparse.Namespace, console: Console, store: Store) -> Findings:
    asked = (args.trace, args.policy, args.load, args.seeds, flags.setting(args), args.first_seed)
    study = Study(*asked)
    with watched(console, store, args.jobs) as sweep:
        one, _ = sweep.saturations(study)
        results = sweep.results("cells", study.cells(one))
    return Findings(study, one, results)
