"""``warmroute replicas``: the gateways of the fleet."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from router.cli.operate.operating import add_operation, as_json, call, print_table
from router.cli.options import Commands


def register(commands: Commands) -> None:
    add_operation(commands, "replicas", "list the gateways of the fleet, as a running gateway hears them", _list)


def _list(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "GET", "/replicas")
    if as_json(arguments, reply):
        return 0
    document = reply.document
    if document["fleet"] is None:
        print("this gateway is on its own: redis.url is not set")
        return 0
    heads = ("replica", "name", "version", "processes", "started (UTC)", "last heard")
    print_table(heads, [_row(one) for one in document["replicas"]])
    if document["alone"]:
        print(f"warmroute: this gateway is alone: {document['problem'] or 'not connected yet'}", file=sys.stderr)
    return 0


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    started = one["started_at"]
    since = None if started is None else datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%d %H:%M:%S")
    silent_s = one["silent_s"]
    heard = "this gateway" if one["itself"] else "not heard" if silent_s is None else f"{silent_s:.2f} s ago"
    return one["id"], one["name"], one["version"], one["processes"], since, heard
