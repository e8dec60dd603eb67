"""The ``warmroute`` command: find the subcommand and run it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from router.cli import config, explain, keys, picker, picker_conformance, replay, serve, sidecar, worker
from router.cli.checks import check
from router.cli.guard import USAGE_ERROR, guarded
from router.cli.operate import diagnose, named_settings, planner, policy, replicas, revisions, routes, top, workers
from router.cli.options import Commands, HelpFormatter
from router.config.version import version

ENTRY_POINTS = "warmroute.commands"

_EXAMPLES = """\
examples:
  warmroute demo                                        see what prefix routing saves on this machine
  warmroute serve --worker http://gpu1:8000 --worker http://gpu2:8000
  warmroute load http://gw1:8080 --request-rate 4       what latency it has under load
  warmroute serve --config warmroute.yaml               see `warmroute config --sample yaml`
  warmroute check --worker http://gpu1:8000             how well a worker's cache is known, and how to improve it
  warmroute explain request.json                        which worker a request would go to now, and why
  warmroute top                                         the fleet in this terminal, and what hurts in it
  warmroute diagnose                                    what hurts in the fleet now, and what to try
  warmroute workers drain gpu1:8000 --wait 600          take a worker out of a running gateway
  warmroute policy set lpwl --dry-run                   what another policy would change

Every setting can come from a flag, a WARMROUTE_* variable or a file; the first one wins.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the process's arguments) and return the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.run is None:
        parser.print_help()
        return USAGE_ERROR
    return guarded(arguments.run, arguments)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute",
        description="OpenAI-compatible gateway that sends each request to the vLLM worker with its prefix in cache.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"warmroute {version('(not installed)')}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (
        *(serve, sidecar, picker, check, diagnose, top, explain, replay, workers, policy, planner),
        *(routes, named_settings, revisions, replicas, config, keys, worker, picker_conformance),
    ):
        command.register(commands)
    _register_further(commands)
    return parser


def _register_further(commands: Commands) -> None:
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            point.load()(commands)
        except Exception as error:  # a broken third-party package must not stop `serve`
            print(f"warmroute: command {point.name!r} ({point.value}) is not available: {error}", file=sys.stderr)
