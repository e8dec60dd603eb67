"""``warmroute explain``: which worker a request would go to now, and the cost of each candidate."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from router.cli.operate.admin_options import TOKEN_VARIABLE
from router.cli.operate.operating import add_operation, as_json, call
from router.cli.options import Commands
from router.config.problems import ConfigError, Problem

_EXAMPLES = f"""\
examples:
  warmroute explain request.json                        a body of POST /v1/chat/completions
  warmroute explain - --path /v1/completions < request.json
  warmroute explain request.json --url https://router:8001 --ca-file ca.pem --token-file admin-token

Nothing is sent to a worker and nothing is reserved. Without --token and --token-file, {TOKEN_VARIABLE} is used.
exit codes: 0 the gateway answered; 1 it cannot be reached or refused the request; 2 an option or the file is wrong.
"""


def register(commands: Commands) -> None:
    summary = "show which worker a request would go to now, and why"
    parser = add_operation(commands, "explain", summary, _explain, form="text")
    parser.epilog = _EXAMPLES
    parser.add_argument("request", metavar="REQUEST.json", help="file with the JSON body, - for standard input")
    parser.add_argument("--path", default="/v1/chat/completions", help="path of the request (default %(default)s)")
    parser.add_argument("--key", metavar="NAME", help="name of the API key that the client would use")


def _explain(arguments: argparse.Namespace) -> int:
    # late: `warmroute --help` must not wait for the JSON types
    from router.cli.explanation import sentences

    question: dict[str, Any] = {"path": arguments.path, "body": _body(arguments.request)}
    if arguments.key is not None:
        question["key"] = arguments.key
    reply = call(arguments, "POST", "/explain", question)
    if not as_json(arguments, reply):
        print("\n".join(sentences(reply.body)))
    return 0


def _body(source: str) -> str:
    """Read the body. It goes to the gateway as text, so that the gateway sees the client's bytes."""
    place = "standard input" if source == "-" else source
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        fix = "write a readable file with the request's JSON body"
        raise ConfigError([Problem(place, f"cannot be read: {said}", fix)]) from None
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        fix = "correct the JSON there"
        raise ConfigError([Problem(f"{place}:{error.lineno}:{error.colno}", f"not JSON: {error.msg}", fix)]) from None
    except RecursionError:
        raise ConfigError([Problem(place, "nested too deeply", "write a request's JSON body")]) from None
    if not isinstance(body, dict):
        fix = 'write a request\'s body, as in {"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
        raise ConfigError([Problem(place, "the body is not a JSON object", fix)])
    return text
