"""What gateways send of a request: its headers, the subset of endpoints, and how the body comes."""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Iterable, Iterator

from router.picker.pools.worker_pool import WorkerPool
from router.picker.protocol.ext_proc_pb2 import HeaderMap, ProcessingRequest
from router.picker.protocol.names import OBJECTIVE, OLD_OBJECTIVE, SUBSET, SUBSET_NAMESPACE
from router.requests.request_head import RequestHead
from router.security.callers import Caller

_DIGITS = 18
_OBJECTIVES = (OBJECTIVE.encode(), OLD_OBJECTIVE.encode())


def fields_of(headers: HeaderMap) -> dict[bytes, bytes]:
    """Return header values by lower-case name. Repeated ones are joined by a comma, and `raw_value` wins."""
    fields: dict[bytes, bytes] = {}
    for header in headers.headers:
        name, value = header.key.lower().encode(), header.raw_value or header.value.encode()
        fields[name] = value if name not in fields else fields[name] + b", " + value
    return fields


def head_of(headers: HeaderMap) -> RequestHead:
    fields = fields_of(headers)
    method, target = fields.pop(b":method", b"GET"), fields.pop(b":path", b"/")
    authority = fields.pop(b":authority", None)
    fields.pop(b":scheme", None)
    if authority is not None:
        fields.setdefault(b"host", authority)
    path, _, query = target.decode("latin-1").partition("?")
    return RequestHead(
        method=method.decode("latin-1"),
        target=target,
        path=path,
        query=query,
        minor=1,
        lines=[],
        fields=fields,
        keep_alive=True,
        content_length=_length(fields.get(b"content-length", b"")),
        chunked=False,
        expects_continue=False,
        websocket=b"upgrade" in fields,
    )


def _length(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= _DIGITS else 0


class Subset:
    """Endpoints to choose from, each as ``ip:port``, or as an address that stands for all its ports."""

    __slots__ = ("_members", "pool")

    def __init__(self, members: Iterable[str]) -> None:
        self._members = {_canonical(one.strip()) for one in members if one.strip()}
        self.pool: Container[str] | None = None
        """The pool of which these are a part; None for all workers."""

    def __contains__(self, endpoint_id: object) -> bool:
        if not isinstance(endpoint_id, str) or (self.pool is not None and endpoint_id not in self.pool):
            return False
        return endpoint_id in self._members or endpoint_id.rpartition(":")[0] in self._members


def pool_of(within: Container[str] | None) -> str | None:
    """Return the name of the pool to which a request is limited, if there are several."""
    pool = within.pool if isinstance(within, Subset) else within
    return pool.name if isinstance(pool, WorkerPool) else None


def objective_of(head: RequestHead, caller: Caller) -> str | None:
    """Return the objective that a request names, if its caller may name one."""
    if "priority" not in caller.may:
        return None
    named = next((head.fields[name] for name in _OBJECTIVES if head.fields.get(name)), None)
    return None if named is None else named.decode("latin-1")


def _canonical(member: str) -> str:
    """Return a member as endpoint ids are written: an IPv6 address in its short form and in brackets."""
    address, port = member, ""
    if member.startswith("["):
        address, _, port = member[1:].partition("]")
    if ":" not in address or (not member.startswith("[") and address.count(":") == 1):
        return member
    try:
        return f"[{ipaddress.IPv6Address(address)}]{port}"
    except ValueError:
        return member


def subset_of(message: ProcessingRequest) -> Subset | None:
    """Return the subset that a gateway names in metadata; None if it names none."""
    by_namespace = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in by_namespace or SUBSET not in by_namespace[SUBSET_NAMESPACE].fields:
        return None
    value = by_namespace[SUBSET_NAMESPACE].fields[SUBSET]
    texts = [one.string_value for one in value.list_value.values] or [value.string_value]
    return Subset(_split(texts))


def _split(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from text.split(",")
