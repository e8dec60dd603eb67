"""``warmroute workers pause``, ``resume``, ``reset-cache``, ``load-lora`` and ``unload-lora``."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from router.cli.operate.operating import add_operation, as_json, call, print_table
from router.cli.options import Commands, pairs
from router.config.problems import ConfigError, Problem


class _Command(NamedTuple):
    name: str
    operation: str
    summary: str
    adapter: tuple[str, ...] = ()


_COMMANDS = (
    _Command("pause", "pause", "send workers no new requests, wait for those that run there, and pause them"),
    _Command("resume", "resume", "resume paused workers and end their maintenance"),
    _Command("reset-cache", "reset-prefix-cache", "empty the prefix caches of idle workers"),
    _Command("load-lora", "load-lora", "load a LoRA adapter from a folder on the workers' hosts", ("name", "path")),
    _Command("unload-lora", "unload-lora", "stop serving a LoRA adapter", ("name",)),
)


def register(workers: Commands) -> None:
    for command in _COMMANDS:
        parser = add_operation(workers, command.name, command.summary, _run)
        parser.add_argument(
            "id", metavar="HOST:PORT", nargs="?", help="id of one worker, in place of the options below"
        )
        parser.add_argument("--model", help="all workers that serve this model")
        parser.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="all with this label")
        parser.add_argument("--role", help="all with this role")
        parser.add_argument("--all", action="store_true", help="all workers")
        parser.add_argument("--dry-run", action="store_true", help="show which workers would be asked, and ask none")
        for field in command.adapter:
            parser.add_argument(f"--lora-{field}", required=True, help=f"{field} of the adapter")
        if command.operation == "pause":
            parser.add_argument("--wait", metavar="SECONDS", type=int, default=60, help="longest wait (%(default)s)")
        parser.set_defaults(operation=command.operation, adapter=command.adapter)


def _run(arguments: argparse.Namespace) -> int:
    """Print one line for each worker. The exit code is 1 unless all have done it."""
    limit_s = float(getattr(arguments, "wait", 120)) + 60.0
    reply = call(arguments, "POST", "/worker-operations", _body(arguments), wait_s=0, limit_s=limit_s)
    results = reply.document["results"]
    if not as_json(arguments, reply):
        rows = [(each["worker"], each["name"], each["outcome"].replace("_", " "), each["detail"]) for each in results]
        print_table(("worker", "name", "outcome", "reason"), rows)
    return 0 if all(each["outcome"] in ("done", "dry_run") for each in results) else 1


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    selector = {"model": arguments.model, "labels": pairs("--label", arguments.label), "role": arguments.role}
    given = {key: value for key, value in selector.items() if value}
    if arguments.all:
        given["all"] = True
    if (arguments.id is None) == (not given):
        fix = "write HOST:PORT, or --model, --label, --role or --all"
        raise ConfigError([Problem("the workers", "one worker or a selector is needed, and not both", fix)])
    if arguments.id is not None:
        given["workers"] = [arguments.id]
    adapter = {f"lora_{field}": getattr(arguments, f"lora_{field}") for field in arguments.adapter}
    wait = {"wait_s": arguments.wait} if arguments.operation == "pause" else {}
    return {"operation": arguments.operation, **given, **adapter, **wait}
