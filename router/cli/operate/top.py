"""``warmroute top``: the fleet and what hurts, in a terminal, until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from router.cli.formats import seconds, share, wide_console
from router.cli.operate.admin_options import token_of
from router.cli.operate.operating import add_operation, call
from router.cli.options import Commands

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

DIAGNOSE_S = 10.0
"""Time between two diagnoses."""
SILENT_S = 45.0
"""Longest time without a byte. The gateway sends a comment every 15 s."""
_TENANTS_SHOWN = 5
_STATES = {"ready": "green", "unhealthy": "red"}


def register(commands: Commands) -> None:
    parser = add_operation(commands, "top", "follow the fleet of a running gateway, and what hurts in it", _top)
    parser.add_argument("--once", action="store_true", help="print the fleet once, and end")


class FollowedFleet:
    """The rows of the fleet, as its stream of events tells them, the latest diagnosis, and the classes."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.diagnosis: dict[str, Any] = {}
        self.classes: list[dict[str, Any]] = []
        """Those of the latest ten seconds, in the order in which they go first."""

    def heard(self, name: str, value: Any) -> None:
        if name == "snapshot":
            self.rows = {row["id"]: row for row in value["rows"]}
        elif name == "removed":
            self.rows.pop(value["id"], None)
        elif name in ("added", "changed"):
            self.rows[value["id"]] = value

    def shown(self, most: int) -> Group:
        """Return at most `most` rows, those with the most requests first, below what hurts."""
        from rich.console import Group
        from rich.text import Text

        busiest = sorted(self.rows.values(), key=lambda row: (-row["in_flight"], row["id"]))
        states: dict[str, int] = {}
        for row in busiest:
            states[row["state"]] = states.get(row["state"], 0) + 1
        counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        parts: list[RenderableType] = [Text(line, style="bold red") for line in self._hurts()]
        parts.append(Text(f"{len(busiest)} workers: {counts or 'none'}"))
        parts.append(_table(busiest[:most]))
        if len(busiest) > most:
            parts.append(Text(f"and {len(busiest) - most} more with fewer requests"))
        if self.classes:
            parts.append(_class_table(self.classes))
        return Group(*parts)

    def _hurts(self) -> Iterator[str]:
        for finding in self.diagnosis.get("findings", ()):
            yield f"{finding['severity'].upper()}: {finding['symptom']} (warmroute diagnose)"
        for level in self.diagnosis.get("service_levels", ()):
            if level["out"]:
                met, seen = level["met"], level["met"] + level["missed"]
                yield f"route {level['route']}: {met:,} of {seen:,} streams met their {level['target']}"


def _top(arguments: argparse.Namespace) -> int:
    if arguments.output == "json":
        print(call(arguments, "GET", "/fleet").body.decode())
        return 0
    console, fleet = wide_console(), FollowedFleet()
    _look(arguments, fleet)
    if arguments.once or not console.is_terminal:
        fleet.heard("snapshot", call(arguments, "GET", "/fleet").document)
        console.print(fleet.shown(len(fleet.rows)))
        return 0
    return _follow(arguments, console, fleet)


def _follow(arguments: argparse.Namespace, console: Any, fleet: FollowedFleet) -> int:
    """Draw after each event. A second thread asks for the diagnosis, because the stream may be silent for long."""
    from rich.live import Live

    threading.Thread(target=_diagnose, args=(arguments, fleet), daemon=True).start()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for name, value in events(arguments, "/admin/v1/fleet?watch=true"):
            if name in ("end", "cut"):
                break
            fleet.heard(name, value)
            live.update(fleet.shown(max(1, console.height - 8)), refresh=True)
    print("warmroute: the stream has ended; the gateway stops, or another process has taken over", file=sys.stderr)
    return 1


def _diagnose(arguments: argparse.Namespace, fleet: FollowedFleet) -> None:
    from router.cli.operate.admin_client import AdminClientError

    while True:
        time.sleep(DIAGNOSE_S)
        try:
            _look(arguments, fleet)
        except AdminClientError:
            continue  # the stream says that the gateway is gone


def _look(arguments: argparse.Namespace, fleet: FollowedFleet) -> None:
    """Ask for what does not come as events.

    Raises:
        AdminClientError: the admin port cannot be reached, or refuses.
    """
    fleet.diagnosis = call(arguments, "GET", "/diagnosis").document
    points = call(arguments, "GET", "/traffic?limit=1").document["points"]
    fleet.classes = points[0].get("classes", []) if points else []


def events(arguments: argparse.Namespace, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the JSON of each event until the stream ends.

    Raises:
        AdminClientError: the admin port cannot be reached, or refuses.
    """
    # late: `warmroute --help` must not wait for TLS
    from router.cli.operate.admin_client import stream

    with stream(arguments.url, path, token=token_of(arguments), ca_file=arguments.ca_file, timeout_s=SILENT_S) as lines:
        yield from parsed(lines)


def parsed(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        field, _, value = line.decode().rstrip("\r\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    heads = ("worker", "state", "role", "view", "requests", "queued", "KV", "idle", "cached", "TTFT", "gap", "tok/s")
    table = Table()
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:4] else "right", no_wrap=True)
    for row in rows:
        state = Text(row["state"], style=_STATES.get(row["state"], "yellow"))
        table.add_row(Text(row["name"] or row["id"]), state, *(Text(cell) for cell in _cells(row)))
    return table


def _class_table(classes: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    heads = ("class", "waiting", "work", "refused", "level met", "waiting by tenant")
    table = Table()
    for head in heads:
        table.add_column(head, justify="left" if head in (heads[0], heads[-1]) else "right")
    for one in classes:
        largest = sorted(one["tenants"].items(), key=lambda item: (-item[1], item[0]))[:_TENANTS_SHOWN]
        tenants = ", ".join(f"{name or 'no key'} {number:,}" for name, number in largest)
        more = len(one["tenants"]) - len(largest)
        cells = (
            one["request_class"],
            f"{one['waiting']:,}",
            seconds(one["work_s"]),
            f"{one['refused']:,}",
            share(one["level_share"]),
            tenants + (f", and {more} more" if more else ""),
        )
        table.add_row(*map(Text, cells))
    return table


def _cells(row: dict[str, Any]) -> Iterator[str]:
    yield row["role"]
    yield row["residency"]
    yield str(row["in_flight"])
    yield seconds(row["queue_wait_s"])
    for name in ("kv_usage", "idle_share", "cached_share"):
        yield share(row[name])
    for name in ("ttft_s", "gap_s"):
        yield seconds(row[name])
    speed = row["prefill_tokens_per_s"]
    yield "" if speed is None else f"{speed:,.0f}"
