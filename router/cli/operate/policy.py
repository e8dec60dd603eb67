"""``warmroute policy``: show the policy of a running gateway, or choose another one."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from router.cli.formats import seconds, share
from router.cli.operate.operating import add_operation, as_json, call, changed, group, print_table
from router.cli.options import Commands, pairs


def register(commands: Commands) -> None:
    policy = group(commands, "policy", "show or change the policy of a running gateway")
    add_operation(policy, "show", "show the policy in use, and the rules that can be chosen", _show)
    wanted = add_operation(policy, "set", "choose another policy", _set, changes=True)
    wanted.add_argument("--name", help="set the further policy of this name, for routes")
    _add_wanted(wanted)
    removed = add_operation(policy, "remove", "remove a further policy", _remove, changes=True)
    removed.add_argument("name", help="a policy, as `warmroute policy show` shows them")
    asked = "show what a policy would have chosen at the latest decisions"
    _add_wanted(add_operation(policy, "what-if", asked, _what_if), "default: that of the rule")


def _add_wanted(parser: argparse.ArgumentParser, without: str = "default: as it is now") -> None:
    parser.add_argument("rule", help="a rule, as `warmroute policy show` lists them")
    parser.add_argument("--param", metavar="KEY=VALUE", action="append", default=[], help="parameter (repeatable)")
    for name in ("hold", "lanes"):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=without)


def _show(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "GET", "/policy")
    if not as_json(arguments, reply):
        shown = {key: reply.document[key] for key in ("rule", "params", "hold", "lanes")}
        print_table(
            ("policy", ""),
            [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in shown.items()],
        )
        named = call(arguments, "GET", "/policies").document["policies"]
        if named:
            print_table(("further policy", ""), [(name, json.dumps(_set_fields(one))) for name, one in named.items()])
        rules = [(one["rule"], one["summary"], ", ".join(one["params"])) for one in reply.document["available"]]
        print_table(("rule", "", "parameters"), rules)
    return 0


def _set_fields(policy: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in policy.items() if value not in (None, {}, 0)}


def _set(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        reply = call(arguments, "PUT", "/policy", _wanted(arguments))
        return changed(arguments, reply, f"the policy is {arguments.rule}")
    reply = call(arguments, "PUT", f"/policies/{quote(arguments.name, safe='')}", _wanted(arguments))
    return changed(arguments, reply, f"policy {arguments.name} is {arguments.rule}")


def _remove(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "DELETE", f"/policies/{quote(arguments.name, safe='')}")
    return changed(arguments, reply, f"removed policy {arguments.name}")


def _what_if(arguments: argparse.Namespace) -> int:
    """Show how the choices of another policy differ, and by the gateway's predictions, by how much."""
    reply = call(arguments, "POST", "/what-if", _wanted(arguments))
    if as_json(arguments, reply):
        return 0
    found = reply.document
    if not found["decisions"]:
        print("no decision is in memory")
        return 0
    print(f"{found['elsewhere']:,} of {found['decisions']:,} decisions would have gone elsewhere")
    rows = [
        ("mean predicted TTFT", *(seconds(found[f"{one}_ttft_s"]) for one in ("recorded", "replayed"))),
        ("cached share", *(share(found[f"{one}_cached_share"]) for one in ("recorded", "replayed"))),
        ("held", *(f"{found[one]['held']:,}" for one in ("recorded", "replayed"))),
    ]
    print_table(("", "recorded", arguments.rule), rows)
    if found["without_prompt"]:
        print(f"{found['without_prompt']:,} of them without the prompt, whose hashes are no longer kept")
    if found["failures"]:
        print(f"at {found['failures']:,} of them the policy failed, and least tokens chose")
    return 0


def _wanted(arguments: argparse.Namespace) -> dict[str, Any]:
    wanted: dict[str, Any] = {"rule": arguments.rule}
    if arguments.param:
        wanted["params"] = {key: _typed(text) for key, text in pairs("--param", arguments.param).items()}
    return wanted | {key: getattr(arguments, key) for key in ("hold", "lanes") if getattr(arguments, key) is not None}


def _typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
