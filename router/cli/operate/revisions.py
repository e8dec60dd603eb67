"""``warmroute revisions`` and ``warmroute reload``: the history of the desired state, and its settings read again."""

from __future__ import annotations

import argparse

from router.cli.operate.operating import add_operation, as_json, call, changed, group, listed, print_differences
from router.cli.options import Commands


def register(commands: Commands) -> None:
    revisions = group(commands, "revisions", "show what was changed in a running gateway, and go back")
    add_operation(revisions, "list", "list the latest changes, newest first", _list)
    show = add_operation(revisions, "show", "show what one revision changed", _show)
    restore = add_operation(revisions, "restore", "go back to the state that a revision made", _restore, changes=True)
    for parser in (show, restore):
        parser.add_argument("number", type=int, help="number of the revision")
    add_operation(commands, "reload", "read the settings of a running gateway again", _reload, changes=True)


def _list(arguments: argparse.Namespace) -> int:
    fields = ("number", "at", "source", "who", "what")
    heads = ("revision", "time (UTC)", "source", "who", "what")
    return listed(
        arguments, "/revisions", heads, lambda found: ([one[key] for key in fields] for one in found["revisions"])
    )


def _show(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "GET", f"/revisions/{arguments.number}")
    if not as_json(arguments, reply):
        one = reply.document
        print(f"revision {one['number']}, {one['at']}: {one['what']} ({one['source']}, {one['who'] or 'no token'})")
        print_differences(one["differences"])
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "POST", f"/revisions/{arguments.number}/restore")
    return changed(arguments, reply, f"restored revision {arguments.number}")


def _reload(arguments: argparse.Namespace) -> int:
    reply = call(arguments, "POST", "/reload")
    if as_json(arguments, reply):
        return 0
    document = reply.document
    print_differences(document["differences"])
    for one in document["conflicts"]:
        print(f"{one['path']}: the settings replace a change of the admin API")
    for one in document["pending"]:
        print(f"{one['path']}: does not take effect now; {one['do']}")
    return 0
