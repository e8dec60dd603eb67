"""Reference pages for the authors of clients: the request headers that the gateway reads, and its error codes."""

from __future__ import annotations

from collections.abc import Iterator

from docs.build.read_headers import READ_HEADERS
from docs.build.tables import MADE, table
from router.errors import ErrorKind, Fault
from router.requests.answers.error_format import anthropic_type
from router.security.callers import VOUCHING

_FAULTS = {
    Fault.CLIENT: ("Fault of the client", "Change the request."),
    Fault.FLEET: ("Fault of the workers", "Try again later; the operator looks at the workers."),
    Fault.GATEWAY: ("Fault of the gateway", "Try again later; the operator looks at the gateway's limits and log."),
}


def headers_page() -> str:
    """Return the page of the request headers that the public port reads."""
    lines = [
        "# Request headers",
        "",
        MADE,
        "The public port reads these headers. All others pass to the worker unread. The endpoint picker reads "
        "`Prefer`, too: with `if-available` a prompt that its worker would have to compute gets 412. "
        "[What the gateway changes](../how-to/front-a-vllm-fleet.md#4-what-the-gateway-changes-in-a-request) says "
        "which of them a worker gets. [Routes](../how-to/route-requests.md) may match any header.",
        "",
    ]
    for title, headers in READ_HEADERS.items():
        rows = ((f"`{name}`", effect) for name, effect in headers.items())
        lines += [f"## {title}", "", *table(("header", "effect"), rows), ""]
    named = ", ".join(f"`{name}`" for name in sorted(header.decode() for header in VOUCHING))
    lines += [
        "## Digests and signatures of the body",
        "",
        f"A request with {named} gets no optional change of its body. A worker gets none of these headers with a body "
        "to which the gateway adds `cache_salt`.",
    ]
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """Return the page of the error codes of the public port."""
    lines = [
        "# Error codes",
        "",
        MADE,
        'The gateway answers its own errors with OpenAI\'s error object: `{"error": {"message", "type", "param", '
        '"code"}}`. Under `/v1/messages` it is Anthropic\'s, with `code` added. The code is stable, and the message is '
        "for people. In a stream that has begun, the error is its last event. A status of 503 comes with "
        "`Retry-After`. The worker's own errors pass unchanged. The [admin API](admin-api.md#error-codes) has its own, "
        "in problem documents (RFC 9457).",
        "",
    ]
    for fault, (title, remedy) in _FAULTS.items():
        heads = ("code", "status", "type", "Anthropic's type", "meaning")
        lines += [f"## {title}", "", remedy, "", *table(heads, _rows(fault)), ""]
    return "\n".join(lines[:-1]) + "\n"


def _rows(fault: Fault) -> Iterator[tuple[str, ...]]:
    for kind in ErrorKind:
        spec = kind.spec
        if spec.fault is fault:
            yield f"`{spec.code}`", str(spec.status), f"`{spec.type}`", f"`{anthropic_type(kind)}`", spec.title
