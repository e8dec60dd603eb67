"""``warmroute picker-conformance``: test an endpoint picker as a gateway would use it."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from router.cli.options import Commands, add_command
from router.cli.picker_fixture import add_fixture, read_fixture, wrong
from router.config.problems import closest
from router.config.version import version
from router.picker.conformance.fixture import CaseProfile, Fixture

if TYPE_CHECKING:
    from router.picker.conformance.case import CaseResult

FAILED = 1
COMMAND = "picker-conformance"
INSTALL = "run pip install 'warmroute[picker]'"

_EXAMPLES = """\
examples:
  warmroute picker-conformance 127.0.0.1:9002 --tls
  warmroute picker-conformance 127.0.0.1:9002 --endpoint 10.0.0.5:8000 --endpoint 10.0.0.6:8000 --hook ./pool.sh
  warmroute picker-conformance 127.0.0.1:9002 --profile core --profile shedding --sheddable batch --hook ./pool.sh
  warmroute picker-conformance 127.0.0.1:9002 --case B13 --case B14
  warmroute picker-conformance 127.0.0.1:9002 --json report.json --markdown report.md

The hook is called as `COMMAND ACTION ENDPOINT`. It ends with status 0, or with 3 for an action that it does not know.
Cases that need an endpoint, an option or an action that is not there are skipped, and say so.
docs/reference/picker-conformance.md lists the cases and the actions. Needs pip install 'warmroute[picker]'.
exit codes: 0 no case of level MUST failed; 1 one failed, or none passed; 2 an option is wrong, or nothing answers at
HOST:PORT.
"""


def register(commands: Commands) -> None:
    summary = "test any endpoint picker for Envoy and Kubernetes gateways"
    described = "Test an endpoint picker (Envoy ext_proc v3, Gateway API Inference Extension) over gRPC, as a gateway."
    parser = add_command(commands, COMMAND, summary, described, _EXAMPLES)
    add_fixture(parser)
    one = "run this case of any profile, as in B13 (repeatable)"
    parser.add_argument("--case", metavar="ID", action="append", default=[], help=one)
    parser.add_argument("--hook", metavar="COMMAND", help="command that changes the pool for the suite")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the report as Markdown")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its core reports each connection that ends
    # late: `warmroute --help` must not wait for gRPC, and works without it
    try:
        import asyncio

        from router.picker.conformance.channel import TargetUnreachable
        from router.picker.conformance.hook import CommandHook
        from router.picker.conformance.report import conforms, line
        from router.picker.conformance.run import run_conformance
    except Exception as error:  # also protobuf's own error about its version
        raise wrong(COMMAND, f"gRPC cannot be loaded ({error})", INSTALL) from None
    fixture, only = read_fixture(arguments), _cases(arguments.case)
    if only:
        fixture = replace(fixture, profiles=frozenset(CaseProfile))
    _expect_writable(arguments)
    hook = None if arguments.hook is None else CommandHook(_words(arguments.hook))
    try:
        results = asyncio.run(run_conformance(fixture, hook, only, lambda result: print(line(result), flush=True)))
    except TargetUnreachable as error:
        raise wrong(arguments.target, str(error), "start the picker, or correct the address") from None
    _write(arguments, fixture, results)
    return 0 if conforms(results) else FAILED


def _cases(ids: Sequence[str]) -> frozenset[str]:
    from router.picker.conformance.cases import cases

    known = [id_ for id_, _ in cases()]
    for id_ in ids:
        if id_ not in known:
            near = closest(id_.upper(), known)
            raise wrong("--case", f"no case {id_!r}", f"write {near}" if near else "write an id, as in B13")
    return frozenset(ids)


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise wrong("--hook", f"{command!r}: {error}", "write a command line, quoted as for a shell") from None
    if not words:
        raise wrong("--hook", "the command is empty", "name a program")
    return words


def _expect_writable(arguments: argparse.Namespace) -> None:
    for option, file in (("--json", arguments.json), ("--markdown", arguments.markdown)):
        try:
            if file is not None:
                file.open("a").close()
        except OSError as error:
            raise wrong(option, f"{file}: {error.strerror}", "name another file") from None


def _write(arguments: argparse.Namespace, fixture: Fixture, results: Sequence[CaseResult]) -> None:
    from router.picker.conformance.report import document, markdown, totals

    said = version("unknown")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(document(fixture, results, said), indent=2) + "\n", encoding="utf-8")
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(fixture, results, said), encoding="utf-8")
    print("\n".join(totals(results)))
