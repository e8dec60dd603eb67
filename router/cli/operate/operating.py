"""What the commands that operate a running gateway have in common: a call, and its answer as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from router.cli.formats import wide_console
from router.cli.operate.admin_options import add_admin, add_change, add_output, token_of
from router.cli.operate.differences import rows
from router.cli.options import Commands, add_command

if TYPE_CHECKING:
    from router.cli.operate.admin_client import AdminReply

Run = Callable[[argparse.Namespace], int]

EXIT_CODES = "exit codes: 0 done; 1 the gateway cannot be reached or refused; 2 an option is wrong."
_WAIT_MARGIN_S = 60.0


def add_operation(
    commands: Commands, name: str, summary: str, run: Run, *, changes: bool = False, form: str = "table"
) -> argparse.ArgumentParser:
    """Add a command that calls the admin port, and prints `form` or JSON."""
    parser = add_command(commands, name, summary, _sentence(summary), EXIT_CODES)
    if changes:
        add_change(parser)
    add_output(parser, form)
    add_admin(parser)
    parser.set_defaults(run=lambda arguments: _guarded(run, arguments))
    return parser


def group(commands: Commands, name: str, summary: str) -> Commands:
    parser = add_command(commands, name, summary, _sentence(summary))
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def call(
    arguments: argparse.Namespace,
    method: str,
    path: str,
    document: dict[str, Any] | None = None,
    *,
    wait_s: int = 0,
    migrate_after_s: int = 0,
    limit_s: float | None = None,
    if_match: str | None = None,
    dry_run: bool | None = None,
) -> AdminReply:
    # late: `warmroute --help` must not wait for TLS
    from router.cli.operate.admin_client import ask

    tried = getattr(arguments, "dry_run", False) if dry_run is None else dry_run
    times = {"wait_s": wait_s, "migrate_after_s": migrate_after_s}
    query = [*[f"{name}={value}" for name, value in times.items() if value], *(["dry_run=true"] if tried else [])]
    return ask(
        arguments.url,
        method,
        f"/admin/v1{path}{'?' if query else ''}{'&'.join(query)}",
        document,
        token=token_of(arguments),
        ca_file=arguments.ca_file,
        if_match=if_match or getattr(arguments, "if_match", None),
        timeout_s=wait_s + _WAIT_MARGIN_S if limit_s is None else limit_s,
    )


def as_json(arguments: argparse.Namespace, reply: AdminReply) -> bool:
    """Print the gateway's document if JSON is asked for; return whether it was."""
    if arguments.output == "json":
        print(json.dumps(reply.document, indent=2))
    return bool(arguments.output == "json")


def listed(
    arguments: argparse.Namespace, path: str, headings: Sequence[str], rows: Callable[[Any], Iterable[Sequence[object]]]
) -> int:
    """Print the document at `path` as a table, or as JSON."""
    reply = call(arguments, "GET", path)
    if not as_json(arguments, reply):
        print_table(headings, rows(reply.document))
    return 0


def changed(arguments: argparse.Namespace, reply: AdminReply, said: str) -> int:
    if as_json(arguments, reply):
        return 0
    if arguments.dry_run:
        print_differences(reply.document["differences"])
        if reply.tag is not None:
            print(f"warmroute: to change this state and no other, add --if-match '{reply.tag}'", file=sys.stderr)
        return 0
    print(said)
    if reply.kept == "process":
        print("warmroute: the change ends with the gateway's process: state_dir is not set", file=sys.stderr)
    return 0


def print_differences(differences: Sequence[dict[str, Any]]) -> None:
    if not differences:
        print("no difference")
        return
    print_table(("setting", "now", "then"), rows(differences))


def print_table(headings: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Print a table for people."""
    # late: `warmroute --help` must not wait for the table printer
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for line in lines:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in line))
    wide_console().print(table)


def _guarded(run: Run, arguments: argparse.Namespace) -> int:
    from router.cli.operate.admin_client import AdminClientError

    try:
        return run(arguments)
    except AdminClientError as error:
        print(f"warmroute: {error}", file=sys.stderr)
        return 1
