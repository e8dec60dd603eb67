"""Read a stream of server-sent events of the admin port."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import Any

from router.cli.operate.admin_client import stream
from router.cli.operate.admin_options import token_of

SILENT_S = 45.0
"""Longest time without a byte. The gateway sends a comment every 15 s."""


def events(arguments: argparse.Namespace, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the JSON of each event until the stream ends.

    Raises:
        AdminClientError: the admin port cannot be reached, or refuses.
    """
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
