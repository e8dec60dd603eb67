"""``warmroute planner``: what one more worker of each role would save, and the split of roles that costs least."""

from __future__ import annotations

import argparse
from typing import Any

from router.cli.formats import seconds, share
from router.cli.operating import add_command, as_json, call, print_table
from router.cli.options import Commands

_HEADS = ("role", "ready", "recommended", "one more saves", "queue wait", "prefill", "KV in use", "streams", "gap")


def register(commands: Commands) -> None:
    add_command(commands, "planner", "show what prefill and decode workers are worth, and the split to choose", _show)


def _show(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "GET", "/planner")
    if not as_json(arguments, reply):
        _print(reply.document)
    return 0


def _print(document: dict[str, Any]) -> None:
    print(f"Load of the last {document['seconds'] / 60:.1f} minutes: {document['requests']:,} requests.")
    if document["connector"] is None:
        print("handover.connector is not set: roles change no decision, and the split is what they would be worth.")
    for plan in document["plans"]:
        _print_plan(plan)
    if not document["plans"]:
        print("No worker has listed its models yet.")
    if document["flips"] is not None:
        _print_flips(document["flips"])


def _print_flips(flips: dict[str, Any]) -> None:
    counts = ", ".join(f"{number} {outcome.replace('_', ' ')}" for outcome, number in flips["counts"].items() if number)
    print(f"\nhandover.flip_roles is {flips['mode']}{': ' if counts else ''}{counts}.")
    if flips["draining"] is not None:
        print(f"{flips['draining']} drains, and will be a {flips['to_role']} worker.")
    for line in flips["due"]:
        print(f"- {line}.")


def _print_plan(plan: dict[str, Any]) -> None:
    print(f"\nWorkers of {', '.join(plan['models'])}:")
    print_table(_HEADS, [_row(pool, plan["recommended"]) for pool in plan["pools"]])
    if plan["needs"] is not None:
        print(f"No plan: it needs {plan['needs']}.")
        return
    load = plan["load"]
    print(
        f"{load['prefills_per_s']:.3g} prefills/s of {load['prompt_tokens']:,.0f} tokens, {seconds(load['prefill_s'])} "
        f"each, {share(load['handed_share'])} of the work handed over; a handover takes {seconds(load['moved_s'])}."
    )
    print(
        f"{load['answers_per_s']:.3g} answers/s of {load['output_tokens']:,.0f} tokens, {seconds(load['gap_s'])} apart "
        f"on an idle worker; {load['context_tokens']:,.0f} tokens of context each."
    )
    print(_verdict(plan))


def _verdict(plan: dict[str, Any]) -> str:
    now_s, then_s = plan["delay_s"], plan["recommended_delay_s"]
    if plan["recommended"] == plan["now"]:
        return f"Added delay is {now_s:.3g} s per second. No other split would cost less."
    return f"Added delay is {now_s:.3g} s per second, and would be {then_s:.3g} with the recommended split."


def _row(pool: dict[str, Any], recommended: dict[str, int] | None) -> tuple[object, ...]:
    price_s = pool["price_s"]
    return (
        pool["role"],
        pool["ready"],
        "" if recommended is None else recommended[pool["role"]],
        "" if price_s is None else f"{price_s:.3g} s/s",
        seconds(pool["queue_wait_s"]),
        share(pool["utilisation"]),
        share(pool["kv_occupancy"]),
        "" if pool["running"] is None else f"{pool['running']:.1f}",
        seconds(pool["gap_s"]),
    )
