"""``warmroute workers``: list and change the workers of a running gateway."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from router.cli.operate import worker_operations
from router.cli.operate.operating import add_operation, call, changed, group, listed
from router.cli.options import Commands, pairs


def register(commands: Commands) -> None:
    workers = group(commands, "workers", "list and change the workers of a running gateway")
    add_operation(workers, "list", "list all workers", _list)
    add = add_operation(workers, "add", "add a worker", _add, changes=True)
    add.add_argument("worker_url", metavar="URL", help="http://HOST:PORT of a vLLM endpoint")
    add.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="label (repeatable)")
    add.add_argument("--name", help="name for people, unique in the fleet")
    add.add_argument("--weight", type=float, help="share of the traffic in relation to others (default: 1)")
    add.add_argument("--role", help="what it is for, as a word of your own (default: mixed)")
    change = add_operation(workers, "set", "change settings of a worker", _set, changes=True)
    change.add_argument("id", metavar="HOST:PORT", help="id of the worker")
    change.add_argument(
        "settings",
        metavar="KEY=VALUE",
        nargs="+",
        help="name, weight, role, maintenance, labels.KEY, kv_events.KEY; without a value: back to the default",
    )
    remove = add_operation(workers, "remove", "remove a worker at once", _remove, changes=True)
    drain = add_operation(workers, "drain", "send a worker no new requests", _drain, changes=True)
    undrain = add_operation(workers, "undrain", "send a drained worker requests again", _undrain, changes=True)
    for parser in (remove, drain, undrain):
        parser.add_argument("id", metavar="HOST:PORT", help="id of the worker")
    worker_operations.register(workers)
    drain.add_argument(
        "--migrate-after",
        metavar="SECONDS",
        type=_seconds,
        default=0,
        help="move answers in progress to other workers after this time, on routes with migration (default: the "
        "route's drain_after_s)",
    )
    for parser, what in ((drain, "no request is there"), (undrain, "it takes requests")):
        parser.add_argument("--wait", metavar="SECONDS", type=_seconds, default=0, help=f"wait until {what}")


def _list(arguments: argparse.Namespace) -> int:
    heads = ("worker", "name", "state", "requests", "models", "view of its cache", "weight", "role", "labels")
    return listed(arguments, "/workers", heads, lambda found: map(_row, found["workers"]))


def _row(worker: dict[str, Any]) -> tuple[object, ...]:
    return (
        worker["id"],
        worker["name"] or "",
        worker["state"],
        worker["in_flight"],
        ", ".join(model["id"] for model in worker["models"]),
        ", ".join(dict.fromkeys(candidate["residency"] for candidate in worker["candidates"])),
        f"{worker['weight']:g}",
        worker["role"],
        ", ".join(f"{key}={value}" for key, value in worker["labels"].items()),
    )


def _add(arguments: argparse.Namespace) -> int:
    wanted = {"url": arguments.worker_url, "labels": pairs("--label", arguments.label)}
    given = {field: getattr(arguments, field) for field in ("name", "weight", "role")}
    wanted |= {field: value for field, value in given.items() if value is not None}
    reply = call(arguments, "POST", "/workers", wanted)
    return changed(arguments, reply, f"added {arguments.worker_url}; it takes requests after its first probe")


def _set(arguments: argparse.Namespace) -> int:
    patch: dict[str, Any] = {}
    for place, text in pairs("KEY=VALUE", arguments.settings).items():
        section, _, key = place.partition(".")
        if not key:
            patch[section] = _value(section, text)
        elif isinstance(patch.get(section), dict):
            patch[section][key] = text or None
        else:
            patch[section] = {key: text or None}
    return changed(arguments, call(arguments, "PATCH", _path(arguments), patch), f"changed {arguments.id}")


def _value(key: str, text: str) -> object:
    """Return a setting as JSON. The gateway refuses what is no number and no truth value."""
    if not text:
        return None
    if key == "weight":
        try:
            return float(text)
        except ValueError:
            return text
    return {"true": True, "false": False}.get(text, text) if key == "maintenance" else text


def _remove(arguments: argparse.Namespace) -> int:
    return changed(arguments, call(arguments, "DELETE", _path(arguments)), f"removed {arguments.id}")


def _drain(arguments: argparse.Namespace) -> int:
    reply = call(
        arguments, "POST", f"{_path(arguments)}/drain", wait_s=arguments.wait, migrate_after_s=arguments.migrate_after
    )
    return changed(arguments, reply, f"{arguments.id} gets no new requests")


def _undrain(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "POST", f"{_path(arguments)}/undrain", wait_s=arguments.wait)
    return changed(arguments, reply, f"{arguments.id} gets requests again, once it is ready")


def _path(arguments: argparse.Namespace) -> str:
    return f"/workers/{quote(arguments.id, safe='')}"


def _seconds(text: str) -> int:
    number = text.removesuffix("s")
    if number.isascii() and number.isdecimal() and 1 <= int(number[:6]) <= 3_600:
        return int(number)
    raise argparse.ArgumentTypeError(f"{text!r} is not a time; write whole seconds from 1 to 3600, as in 20s")
