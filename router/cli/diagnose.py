"""``warmroute diagnose``: what hurts, and what to try."""

from __future__ import annotations

import argparse
from typing import Any

from router.cli.operating import add_command, as_json, call, print_table
from router.cli.options import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "diagnose", "say what hurts in a running gateway's fleet, and what to try", _diagnose
    )
    parser.add_argument("--figures", action="store_true", help="show all figures that the checks look at")


def _diagnose(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "GET", "/diagnosis")
    if not as_json(arguments, reply):
        _print(reply.document, figures=arguments.figures)
    return 0


def _print(document: dict[str, Any], *, figures: bool) -> None:
    requests, minutes = document["requests"], document["seconds"] / 60
    print(f"{requests:,} requests ended in the last {minutes:.1f} minutes.")
    for finding in document["findings"]:
        _print_finding(finding)
    for level in document["service_levels"]:
        print(_level(level))
    if not document["findings"]:
        print("No check has found anything.")
    for unsure in document["unsure"]:
        print(f"Not checked: {_words(unsure['pressure'])} needs {unsure['needs']}.")
    if figures:
        _print_tables(document["figures"])


def _print_finding(finding: dict[str, Any]) -> None:
    print(f"\n{_words(finding['pressure']).upper()}: {finding['symptom']}\n{finding['detail']}")
    _print_tables(finding["evidence"])
    print("What to try:")
    for one in finding["to_try"]:
        print(f"- {one}")
    print()


def _print_tables(tables: list[dict[str, Any]]) -> None:
    for table in tables:
        if table["rows"]:
            print(f"{table['caption']}:")
            print_table(table["columns"], table["rows"])


def _level(level: dict[str, Any]) -> str:
    seen = level["met"] + level["missed"]
    verdict = "out of its service level" if level["out"] else "within its service level"
    return f"Route {level['route']}: {level['target']} is {verdict}: {level['met']:,} of {seen:,} streams met it."


def _words(pressure: str) -> str:
    return pressure.replace("_", " ")
