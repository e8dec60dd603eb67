"""docs/reference/admin-api.md, made from the table of operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from router.admin.changes import KEPT
from router.admin.http.codes import CODES
from router.admin.openapi import OPENAPI_PATH, openapi_document, openapi_path, problems_of, schema_name
from router.admin.operations import MAX_BODY_BYTES, Operation
from router.admin.table import OPEN_PATHS, OPERATIONS

_HEAD = f"""\
# Admin API

The admin port (`admin_host`, `admin_port`; 127.0.0.1:8001 by default) speaks JSON. `GET {OPENAPI_PATH}` describes it
for programs. `python -m docs.build` generates this page; a test compares it with the code.

- Errors are problem documents (RFC 9457, `application/problem+json`) with a stable [`code`](#error-codes) and a
  `detail` that says what to do.
- A body is JSON with `Content-Type: application/json` and at most {MAX_BODY_BYTES:,} bytes, unless its operation names
  more. An unknown field is an error (422). A query parameter that an operation does not have, or that comes twice, is
  one too (400).
- Answers are `application/json`, a watch is `text/event-stream`, and errors are always problem documents. An `Accept`
  header that does not allow the answer gets 406, and nothing changes. `/livez`, `/readyz` and `/metrics` answer
  whatever it says; `/metrics` is OpenMetrics for a scraper that asks for it.
- A list comes in pages: `limit` bounds a page, and its `next` is the `cursor` of the following page, null at the end.
  Entries that join meanwhile move no page.
- A list with `watch` can be a stream of server-sent events, each with JSON as its data. `snapshot` is the list. Then,
  once a second, come `added` and `changed` with an entry, and `removed` with its id. `skipped` says that entries came
  faster than they are sent, `cut` that this client reads too slowly, and `end` that the gateway's service ends.
- Workers and policy are parts of the desired state, which has a version. `ETag` is that version, in answers that show
  or change such a part. `If-Match` makes a change conditional: 412 if the state has another version. Elsewhere
  `If-Match` gets 501, and so do `If-None-Match` and `If-Unmodified-Since` on changes.
- With `?dry_run=true` a change answers with the differences that it would make, and changes nothing.
- A change reaches all processes or none. It outlives the process if `state_dir` is set; `{KEPT}` in the answer says so
  (`state_dir` or `process`).
- To keep browser pages out, the `Host` must be a loopback name, an IP address, `admin_host` or one of `admin_hosts`. An
  `Origin` must be the same site.
- With `admin_token`, `admin_tokens` or a file of either, every request needs `Authorization: Bearer TOKEN`, except
  `/livez`, `/readyz`, the files of the console (`/`) and, with `admin_metrics_open`, `/metrics`. Without tokens,
  everyone who reaches the port may use it: keep it on loopback.
- A token has a role. `operate` includes `read`, `admin` includes every role, and `register` allows registrations
  alone. A request that needs another role gets 403 `role_not_allowed`, which names it. `admin_token` has the role
  `admin`.
"""


def reference_page() -> str:
    document = openapi_document()
    lines = [_HEAD, "| method | path | role | |", "| --- | --- | --- | --- |"]
    lines += [f"| {one.method} | `{openapi_path(one)}` | {_role(one)} | {one.summary} |" for one in OPERATIONS]
    for operation in OPERATIONS:
        lines += ["", *_operation(operation)]
    lines += ["", *_codes(), "", "## Shapes"]
    for name, schema in document["components"]["schemas"].items():
        lines += ["", *_shape(name, schema)]
    return "\n".join(lines) + "\n"


def _codes() -> Iterator[str]:
    yield "## Error codes"
    yield ""
    yield "What the public port has too, such as `path_not_found`, has [its codes](errors.md)."
    yield ""
    yield "| code | status | |"
    yield "| --- | --- | --- |"
    for code, (statuses, meaning) in CODES.items():
        yield f"| `{code}` | {' or '.join(map(str, statuses))} | {meaning} |"


def _role(operation: Operation) -> str:
    return "" if operation.path in OPEN_PATHS else operation.role


def _operation(operation: Operation) -> Iterator[str]:
    yield f"## {operation.method} `{openapi_path(operation)}`"
    yield ""
    yield operation.summary
    yield ""
    if operation.changes_state:
        yield "- takes an `If-Match` header"
    for query in operation.query:
        yield f"- `?{query.name}=`: {query.summary}; {query.values}"
    if operation.takes is not None:
        most = operation.most_body_bytes
        larger = f" of at most {most:,} bytes, with any further fields" if most != MAX_BODY_BYTES else ""
        yield f"- takes {_link(schema_name(operation.takes))}{larger}"
    gives = f" with {_link(schema_name(operation.gives))}" if operation.gives else ""
    yield f"- {operation.status.value}{gives}"
    for status, when in problems_of(operation).items():
        yield f"- {status}: {when}"


def _shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    if description := schema.get("description"):
        yield ""
        yield description.replace("``", "`")
    if properties := schema.get("properties"):
        yield ""
        yield "| field | type | |"
        yield "| --- | --- | --- |"
        for field, about in properties.items():
            yield f"| `{field}` | {_type(about)} | {'required' if field in schema.get('required', ()) else ''} |"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _link(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        # null last, because msgspec versions differ in the order
        return " or ".join(sorted((_type(one) for one in schema["anyOf"]), key=lambda name: name == "null"))
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) and inner else "object"
    return str(schema.get("type", "any JSON"))


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"
