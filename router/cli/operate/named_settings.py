"""``warmroute models``, ``tenants`` and ``limits``: settings by name in a running gateway."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from router.cli.operate.operating import add_operation, call, changed, group, listed, print_table
from router.cli.operate.setting_patches import merge_patch
from router.cli.options import Commands
from router.config.problems import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Listing:
    """One list of the admin API: its path and the field with the entries. `section` has them in the settings.

    `prefix` comes before their names on the command line.
    """

    path: str
    field: str
    section: tuple[str, ...]
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """A command with its lists. `one` is an entry in words, `example` a change; the table has `columns`."""

    command: str
    one: str
    lists: tuple[Listing, ...]
    columns: tuple[str, ...]
    example: str

    def place(self, name: str) -> tuple[Listing, str]:
        """Return the list of an entry, and its name there.

        Raises:
            ConfigError: the name has none of the prefixes.
        """
        for listing in self.lists:
            if name.startswith(listing.prefix) and name != listing.prefix:
                return listing, name.removeprefix(listing.prefix)
        fix = " or ".join(f"{listing.prefix}NAME" for listing in self.lists)
        raise ConfigError([Problem("NAME", f"{name!r} is not {self.one}", f"write {fix}")])


RESOURCES = (
    Resource(
        "models",
        "a model",
        (Listing("/models", "models", ("models",)),),
        ("aliases", "fallback", "default", "on_request", "slo", "dir", "tokenizer", "chat_template"),
        "aliases=gpt-4o,chat",
    ),
    Resource(
        "tenants",
        "a tenant",
        (Listing("/tenants", "tenants", ("tenants",)),),
        ("keys", "cache_group", "max_queued_requests", "max_buffered_body_bytes", "trusted"),
        "keys=nightly,weekly",
    ),
    Resource(
        "limits",
        "a tenant or key",
        (
            Listing("/limits/tenants", "limits", ("limits", "tenants"), "tenant:"),
            Listing("/limits/keys", "limits", ("limits", "keys"), "key:"),
        ),
        ("requests_per_minute", "tokens_per_minute", "max_concurrent_requests", "burst_requests", "burst_tokens"),
        "requests_per_minute=60",
    ),
)


def register(commands: Commands) -> None:
    for resource in RESOURCES:
        _register(commands, resource)


def _register(commands: Commands, resource: Resource) -> None:
    below = group(commands, resource.command, f"show or change the {resource.command} of a running gateway")
    add_operation(below, "list", f"list the {resource.command} that are set", partial(_list, resource))
    chosen = add_operation(below, "set", f"add or change {resource.one}", partial(_set, resource), changes=True)
    removed = f"remove the settings of {resource.one}"
    remove = add_operation(below, "remove", removed, partial(_remove, resource), changes=True)
    for parser in (chosen, remove):
        parser.add_argument("name", metavar="NAME", help=_names(resource))
    chosen.add_argument(
        "settings",
        metavar="KEY=VALUE",
        nargs="+",
        help=f"{', '.join(resource.columns)}, as in {resource.example}; without a value: back to the default",
    )
    if resource.command == "limits":
        add_operation(below, "left", "show what each tenant and key has left now", _left)


def _names(resource: Resource) -> str:
    prefixes = [listing.prefix for listing in resource.lists if listing.prefix]
    return " or ".join(f"{prefix}NAME" for prefix in prefixes) or f"name of {resource.one}"


def _list(resource: Resource, arguments: argparse.Namespace) -> int:
    replies = [(listing, call(arguments, "GET", listing.path)) for listing in resource.lists]
    if arguments.output == "json":
        found = {listing.section[-1]: reply.document[listing.field] for listing, reply in replies}
        print(json.dumps(found, indent=2))
        return 0
    rows = [
        (f"{listing.prefix}{name}", *(_cell(entry[column]) for column in resource.columns))
        for listing, reply in replies
        for name, entry in reply.document[listing.field].items()
    ]
    print_table((resource.one.partition(" ")[2], *resource.columns), rows)
    return 0


def _set(resource: Resource, arguments: argparse.Namespace) -> int:
    path, section = _entry(resource, arguments)
    reply = call(arguments, "PATCH", path, merge_patch(section, arguments.settings))
    return changed(arguments, reply, f"set {arguments.name}")


def _remove(resource: Resource, arguments: argparse.Namespace) -> int:
    path, _ = _entry(resource, arguments)
    return changed(arguments, call(arguments, "DELETE", path), f"removed {arguments.name}")


def _entry(resource: Resource, arguments: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """Return the path of an entry in the admin API, and its section in the settings."""
    listing, name = resource.place(arguments.name)
    return f"{listing.path}/{quote(name, safe='')}", (*listing.section, name)


def _cell(value: object) -> str:
    """Return a setting as the command line takes it; empty if it is not set or off."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={item:g}" for key, item in value.items() if item is not None)
    return "" if value in (None, False, 0) else str(value).lower() if value is True else str(value)


def _left(arguments: argparse.Namespace) -> int:
    heads = ("tenant or key", "requests left", "tokens left", "running")
    return listed(arguments, "/limits", heads, lambda found: map(_account, found["accounts"]))


def _account(account: dict[str, Any]) -> tuple[object, ...]:
    most = account["max_concurrent_requests"]
    running = f"{account['running_requests']}" + (f" of {most}" if most else "")
    return account["account"], _bucket(account["requests"]), _bucket(account["tokens"]), running


def _bucket(bucket: dict[str, float] | None) -> str:
    return "" if bucket is None else f"{bucket['remaining']:,.0f} of {bucket['burst']:,.0f}"
