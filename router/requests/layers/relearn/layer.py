"""Cache re-announcement: a request asks its worker for the events of blocks whose own events were lost.

It is off by default. The field is one splice in the body (`json_splice`); a body is sent without it if the splice is
uncertain, or if the client signed or digested the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from router.config.model import RouteConfig
from router.metrics.instruments import Reading
from router.placement.fleet.endpoints import Candidate
from router.placement.tickets import Ticket
from router.requests.layer import LayeredRequest, Rewrite, RewriteFeature
from router.requests.outgoing import OutgoingBody
from router.requests.rewrites.json_splice import MAX_SEARCHED_BYTES, VOUCHED, set_inner, spliced
from router.tokenization.body.parsed_body import PROMPT_PATHS, ParsedBody

RELEARN_SINCE: Final = (0, 26)
"""The first vLLM version that announces reused blocks again. Earlier versions ignore the field."""
BUSY_KV_USAGE: Final = 0.9
"""Above this KV usage, a request may wait for blocks, and vLLM announces the prefix of the first waiting request again
at every step."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_FIELD: Final = "kv_cache_report_mode"


class Relearn(Protocol):
    """Decides which requests ask a worker to announce their prefix again. `ResidencyMap` implements it."""

    def asks_again(self, slot: int, ticket_id: int, now_s: float) -> bool:
        """Return whether the placed request should ask. Repeated calls return the same."""


class RelearnFeature(RewriteFeature):
    """Asks by requests whose worker has room for them. `relearn` is None while the feature is off."""

    def __init__(self, relearn: Relearn | None) -> None:
        self._relearn = relearn
        self.counts = dict.fromkeys(("asked", "not_rewritable"), 0)

    def adopt(self, routes: Sequence[RouteConfig]) -> bool:
        return self._relearn is not None

    def rewrite(self, request: LayeredRequest, parsed: ParsedBody) -> Rewrite | None:
        readable = request.head.path in PROMPT_PATHS and parsed.size_bytes <= MAX_SEARCHED_BYTES
        if self._relearn is None or not (readable and parsed.reads_cache and parsed.answers == 1):
            return None
        if not VOUCHED.isdisjoint(request.head.fields):
            return None
        return RelearnRewrite(self._relearn, self.counts, parsed.fields.vllm_xargs)

    def readings(self) -> Iterable[Reading]:
        yield "warmroute_rewrites", ("relearn",), self.counts["asked"]

    def statistics(self) -> dict[str, Any]:
        return {"relearn": dict(self.counts)}


class RelearnRewrite(Rewrite):
    """`present` is the body's own `vllm_xargs`."""

    __slots__ = ("_counts", "_present", "_relearn")

    def __init__(self, relearn: Relearn, counts: dict[str, int], present: Any) -> None:
        self._relearn = relearn
        self._counts = counts
        self._present = present

    def outgoing(self, made: OutgoingBody, ticket: Ticket, now_s: float) -> OutgoingBody:
        candidate, present = ticket.candidate, self._present
        if not _can_answer(candidate) or (isinstance(present, dict) and _FIELD in present):
            return made
        splice = set_inner(made.body, "vllm_xargs", _FIELD, b'"full"', present)
        if splice is None:
            self._counts["not_rewritable"] += 1
        elif self._relearn.asks_again(candidate.slot, ticket.id, now_s):
            self._counts["asked"] += 1
            return msgspec.structs.replace(made, body=spliced(made.body, splice))
        return made


def _can_answer(candidate: Candidate) -> bool:
    load, facts = candidate.load, candidate.endpoint.facts
    if load is not None and (load.waiting or load.kv_usage > BUSY_KV_USAGE):
        return False
    found = None if facts is None else _VERSION.match(facts.version or "")
    return found is None or (int(found[1]), int(found[2])) >= RELEARN_SINCE
