"""Puts another model's name into a request: the model of an alias, the default, or a fallback.

Nothing else of the request changes. vLLM reads the name from the body, from a part of a form or from the query, and so
does this module.
"""

from __future__ import annotations

import re
from itertools import islice
from urllib.parse import quote

import msgspec

from backends.foreign_json import read_json
from router.requests.request_head import RequestHead
from router.requests.rewrites.json_splice import escapes_letters, is_object, with_member
from router.requests.routes import ModelSource, Route
from router.tokenization.body.multipart import Form

_MEMBER = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*')
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
SEARCHED_BYTES = 1_048_576
"""Up to this size a body is searched for the name, which takes about 1 ms; a larger one gets a second member."""
_QUERY = re.compile(r"((?:^|&)model=)[^&]*")


def renamed(
    route: Route, head: RequestHead, body: bytes, form: Form | None, named: str | None, model: str
) -> tuple[RequestHead, bytes, Form | None]:
    """Return head, body and form of a request that names `named`, with `model` in its place.

    Raises:
        RequestError: INVALID_BODY; the body cannot be changed with certainty.
    """
    if route.model is ModelSource.QUERY:
        return in_query(head, model), body, None
    if route.model is ModelSource.MULTIPART:
        if form is None:
            return head, body, None
        changed, known = form.renamed(body, model)
        return head, changed, known
    return head, in_json(body, named, model), None


def renamable(route: Route, body: bytes, form: Form | None) -> bool:
    if route.model is ModelSource.MULTIPART:
        return form is not None
    return route.model is ModelSource.QUERY or (route.model is ModelSource.JSON and is_object(body))


def in_json(body: bytes, named: str | None, model: str) -> bytes:
    """Return `body`, a JSON object whose `model` is `named`, with `model` in its place.

    The value is replaced where it is certain: the member's name occurs once, no name has an escaped letter, and the
    value is the one that the parser found. Otherwise the object gets a further `model` at its end, and vLLM uses the
    last one.

    Raises:
        RequestError: INVALID_BODY; the body is no JSON object in UTF-8.
    """
    text = msgspec.json.encode(model)
    if named is not None and len(body) <= SEARCHED_BYTES and not escapes_letters(body):
        places = list(islice(_MEMBER.finditer(body), 2))
        value = _STRING.match(body, places[0].end()) if len(places) == 1 else None
        if value is not None and _decoded(value[0]) == named:
            return body[: value.start()] + text + body[value.end() :]
    return with_member(body, b"model", text)


def in_query(head: RequestHead, model: str) -> RequestHead:
    value = quote(model, safe="")
    query, found = _QUERY.subn(lambda match: match[1] + value, head.query, count=1)
    if not found:
        query = f"{query}&model={value}" if query else f"model={value}"
    target = f"{head.path}?{query}".encode("ascii")
    return msgspec.structs.replace(head, target=target, query=query, forwarded=None)


def _decoded(text: bytes) -> str | None:
    try:
        return read_json(text, str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
