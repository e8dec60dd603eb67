"""``warmroute routes``: the routes and further policies of a running gateway, and what shadow policies would choose."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from router.cli.operate.operating import add_operation, as_json, call, changed, group, listed, print_table
from router.cli.options import Commands
from router.config.problems import ConfigError, Problem


def register(commands: Commands) -> None:
    routes = group(commands, "routes", "show or change the routes of a running gateway")
    add_operation(routes, "list", "list the routes in the order in which they are tried", _list)
    chosen = add_operation(routes, "set", "use the routes of a file, from the next request on", _set, changes=True)
    chosen.add_argument("file", metavar="FILE", help="YAML or JSON with a list of routes; - for standard input")
    shadow = add_operation(routes, "shadow", "compare a route's shadow policies with what was chosen", _shadow)
    shadow.add_argument("name", help="a route, as `warmroute routes list` shows them")
    shadow.add_argument("--window", metavar="SECONDS", type=int, default=600, help="how far to look back (%(default)s)")


def _list(arguments: argparse.Namespace) -> int:
    heads = ("route", "match", "policy", "most requests", "shadow")
    return listed(arguments, "/routes", heads, lambda found: map(_row, found["routes"]))


def _row(route: dict[str, Any]) -> tuple[str, ...]:
    match = {key: value for key, value in route["match"].items() if value not in (None, {})}
    split = ", ".join(f"{name} {weight}" for name, weight in route["split"].items())
    limit = route["max_requests"]
    return (
        route["name"],
        ", ".join(f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in match.items()),
        split or route["policy"] or "default",
        str(limit) if limit else "",
        ", ".join(route["shadow"]),
    )


def _set(arguments: argparse.Namespace) -> int:
    routes = _read(arguments.file)
    reply = call(arguments, "PUT", "/routes", {"routes": routes})
    return changed(arguments, reply, f"{len(routes)} routes")


def _read(name: str) -> list[Any]:
    """Return the routes of a file: a list, or the key `routes` of a settings file.

    Raises:
        ConfigError: it cannot be read, or has no routes.
    """
    # late: `warmroute --help` must not wait for the parser
    import yaml

    try:
        found = yaml.safe_load(sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([Problem(name, " ".join(str(error).split()), "write a YAML or JSON file")]) from None
    routes = found.get("routes") if isinstance(found, dict) else found
    if not isinstance(routes, list):
        raise ConfigError([Problem(name, "it has no routes", "write a list of routes, or routes: with a list")])
    return routes


def _shadow(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "GET", f"/routes/{quote(arguments.name, safe='')}/shadow?window_s={arguments.window}")
    if as_json(arguments, reply):
        return 0
    document = reply.document
    print(f"route {document['route']}: {', '.join(document['policies'])} decided; last {document['window_s']} s")
    headings = ("shadow", "decisions", "agreed", "TTFT chosen", "TTFT shadow", "cached chosen", "cached shadow")
    print_table(headings, [_compared(shadow) for shadow in document["shadows"]])
    return 0


def _compared(shadow: dict[str, Any]) -> tuple[str, ...]:
    def shown(key: str, form: str) -> str:
        return "" if shadow[key] is None else format(shadow[key], form)

    return (
        shadow["name"],
        str(shadow["totals"]["decisions"]),
        shown("agreement", ".1%"),
        shown("predicted_ttft_s", ".3f"),
        shown("shadow_ttft_s", ".3f"),
        shown("predicted_cached_tokens", ".0f"),
        shown("shadow_cached_tokens", ".0f"),
    )
