"""``warmroute planner``: the size of the fleet for the last hour's traffic of a running gateway."""

from __future__ import annotations

import argparse
import time
from typing import Any

from router.cli.formats import share
from router.cli.operate.operating import add_operation, as_json, call, group, print_table
from router.cli.options import Commands

_POLL_S = 2.0
_HEADS = ("rule", "workers", "profile", "per hour", "verdict", "attained", "cached", "limit")


def register(commands: Commands) -> None:
    planner = group(commands, "planner", "size the fleet for the last hour's traffic of a running gateway")
    add_operation(planner, "show", "show the latest plan", _show)
    start = add_operation(planner, "start", "make a plan from the last hour of the decision log", _start)
    start.add_argument(
        "--candidate",
        action="append",
        required=True,
        type=_candidate,
        metavar="PROFILE[:price=P][:most=N]",
        help="a kind of worker, its price per hour, and how many there may be (repeatable)",
    )
    start.add_argument(
        "--goodput",
        nargs="+",
        required=True,
        type=_limit,
        metavar="NAME:MS",
        help="limits of each call in ms: ttft, tpot, e2el",
    )
    numbers = {
        "attainment": (float, "SHARE", "share of calls that must meet them (default 0.95)"),
        "growth": (float, "X", "arrivals come X times as fast (default 1)"),
        "window-s": (float, "S", "busiest part of the hour to search on (default 300)"),
        "cpu-s": (int, "S", "CPU time of each of the two processes (default 300)"),
    }
    for name, (kind, metavar, help_) in numbers.items():
        start.add_argument(f"--{name}", type=kind, metavar=metavar, help=help_)
    start.add_argument("--wait", action="store_true", help="wait for the plan, and show it")


def _candidate(text: str) -> dict[str, Any]:
    profile, *pairs = text.split(":")
    found: dict[str, Any] = {"profile": profile}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key == "price":
            found["price_per_hour"] = float(value)
        elif key == "most":
            found["most"] = int(value)
        else:
            raise argparse.ArgumentTypeError(f"{pair!r} is neither price=P nor most=N")
    return found


def _limit(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME:MS with a name of ttft, tpot, e2el")
    return f"{name}_ms", float(limit)


def _start(arguments: argparse.Namespace) -> int:
    numbers = {name: getattr(arguments, name) for name in ("attainment", "growth", "window_s", "cpu_s")}
    question = {"candidates": arguments.candidate, **dict(arguments.goodput)}
    question |= {name: value for name, value in numbers.items() if value is not None}
    reply = call(arguments, "POST", "/planner", question)
    while arguments.wait and reply.document["state"] == "running":
        time.sleep(_POLL_S)
        reply = call(arguments, "GET", "/planner")
    return _shown(arguments, reply)


def _show(arguments: argparse.Namespace) -> int:
    return _shown(arguments, call(arguments, "GET", "/planner"))


def _shown(arguments: argparse.Namespace, reply: Any) -> int:
    document = reply.document
    if not as_json(arguments, reply):
        _print(document)
    return 1 if document["state"] == "failed" else 0


def _print(document: dict[str, Any]) -> None:
    state, plan = document["state"], document["plan"]
    if state == "none":
        print("no plan was made since the gateway's start; `warmroute planner start` makes one")
    elif state == "running":
        print("a plan is being made; `warmroute planner show` shows it")
    elif plan is None:
        print(f"the plan failed: {document['problem']}")
    else:
        traffic, workers = plan["traffic"], document["workers"]
        print(f"{traffic['calls']:,} calls in {traffic['span_s'] / 60:.1f} minutes of the log.")
        print_table(_HEADS, [_row(one) for one in plan["fleets"]])
        print("No candidate holds the service level." if workers is None else f"Take {workers} workers.")
        print(f"Made {document['age_s'] / 60:.1f} minutes ago with {document['cpu_s']:.0f} s of CPU time.")
    for one in document["unknown"]:
        print(f"Not known: {one}.")


def _row(fleet: dict[str, Any]) -> tuple[object, ...]:
    known = ("policy", "workers", "profile", "cost_per_hour", "verdict")
    return (
        *(fleet[name] for name in known),
        share(fleet["attained_share"]),
        share(fleet["cached_share"]),
        fleet["limit"],
    )
