"""``warmroute diagnose``: what hurts, and what to try."""

from __future__ import annotations

import argparse
from typing import Any

from router.cli.operate.operating import EXIT_CODES, add_operation, as_json, call, print_table
from router.cli.options import Commands

CODES = {"outage": 4, "degraded": 3}
"""Exit codes of the worst finding with ``--exit-code``."""


def register(commands: Commands) -> None:
    parser = add_operation(
        commands, "diagnose", "say what hurts in a running gateway's fleet, and what to try", _diagnose
    )
    parser.epilog = f"{EXIT_CODES} With --exit-code: 3 something is degraded; 4 there is an outage."
    parser.add_argument("--figures", action="store_true", help="show all figures that the checks look at")
    parser.add_argument(
        "--exit-code", action="store_true", help="end with 4 in an outage, 3 if degraded, else 0 (advice included)"
    )


def _diagnose(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "GET", "/diagnosis")
    if not as_json(arguments, reply):
        _print(reply.document, figures=arguments.figures)
    return code_of(reply.document) if arguments.exit_code else 0


def code_of(document: dict[str, Any]) -> int:
    missed = any(level["out"] for level in document["service_levels"])
    found = [CODES.get(finding["severity"], 0) for finding in document["findings"]]
    return max(found, default=0) or (CODES["degraded"] if missed else 0)


def _print(document: dict[str, Any], *, figures: bool) -> None:
    for finding in document["findings"]:
        _print_finding(finding)
    for level in document["service_levels"]:
        print(_level(level))
    requests, minutes = document["requests"], document["seconds"] / 60
    print(f"{requests:,} requests ended in the last {minutes:.1f} minutes.")
    if not document["findings"]:
        print("No check has found anything.")
    for unsure in document["unsure"]:
        print(f"Not checked: {_words(unsure['check'])} needs {unsure['needs']}.")
    if figures:
        _print_tables(document["figures"])


def _print_finding(finding: dict[str, Any]) -> None:
    print(f"{finding['severity'].upper()}, {_words(finding['check'])}: {finding['symptom']}")
    print(finding["detail"])
    for title, said in (("Which", ", ".join(finding["which"])), ("Since", finding["since"])):
        if said:
            print(f"{title}: {said}")
    for why in finding["why"]:
        print(f"Why: {why}")
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


def _words(check: str) -> str:
    return check.replace("_", " ")
