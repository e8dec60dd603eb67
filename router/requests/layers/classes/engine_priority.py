"""The priority that a worker's own scheduler gets: one member at the end of the body, by the class of the request.

vLLM reads it with --scheduling-policy priority, where a lower number is sooner, and refuses any other than 0 without. A
worker that refuses it gets its requests as they came from then on. The priority of a caller that may send one stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from router.config.model import ClassConfig, RouteConfig
from router.metrics.instruments import Reading
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.request import Usage
from router.placement.tickets import Ticket
from router.requests.layer import LayeredAttempt, LayeredRequest, Rewrite, RewriteFeature
from router.requests.outgoing import OutgoingBody
from router.requests.rewrites.json_splice import VOUCHED, appended, spliced
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH, ParsedBody

log = logging.getLogger("warmroute.gateway")

_PATHS: Final = frozenset({CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH})
"""Anthropic's messages have no such field."""


class EnginePriorities(RewriteFeature):
    """Which priority the requests of each class get, and which workers refuse one."""

    def __init__(self, classes: Mapping[str, ClassConfig], fleet: Fleet) -> None:
        self._of = {
            name: b"%d" % one.engine_priority for name, one in classes.items() if one.engine_priority is not None
        }
        self._fleet = fleet
        self._refusing: set[FleetEndpoint] = set()
        self.sent = 0
        fleet.on_loss.append(self._refusing.discard)

    def adopt(self, routes: Sequence[RouteConfig]) -> bool:
        return bool(self._of)

    def rewrite(self, request: LayeredRequest, parsed: ParsedBody) -> Rewrite | None:
        own = parsed.fields.priority is not None or b"x-vllm-priority" in request.head.fields
        if request.head.path not in _PATHS or not VOUCHED.isdisjoint(request.head.fields):
            return None
        return None if own and "priority" in request.caller.may else PriorityRewrite(self, request)

    def of(self, request: LayeredRequest, endpoint: FleetEndpoint) -> bytes | None:
        claim = request.claim
        return None if claim is None or endpoint in self._refusing else self._of.get(claim.of.name)

    def refused(self, endpoint: FleetEndpoint) -> None:
        """Note that a worker has served a request without its priority, and not with it."""
        if endpoint not in self._refusing:
            self._refusing.add(endpoint)
            log.warning(
                "worker refuses priorities; start vLLM with --scheduling-policy priority", extra={"worker": endpoint.id}
            )

    def readings(self) -> Iterable[Reading]:
        yield "warmroute_rewrites", ("engine_priority",), self.sent

    def statistics(self) -> Mapping[str, Any]:
        return {"engine_priority": {"sent": self.sent, "refused_by": sorted(one.id for one in self._refusing)}}

    def close(self) -> None:
        if self._refusing.discard in self._fleet.on_loss:
            self._fleet.on_loss.remove(self._refusing.discard)


class PriorityRewrite(Rewrite):
    """`_added`: the body was last sent with a priority. `_refused`: a worker has refused it, perhaps for that."""

    __slots__ = ("_added", "_feature", "_refused", "_request")

    def __init__(self, feature: EnginePriorities, request: LayeredRequest) -> None:
        self._feature = feature
        self._request = request
        self._added = self._refused = False

    def outgoing(self, made: OutgoingBody, ticket: Ticket, now_s: float) -> OutgoingBody:
        priority = None if self._refused else self._feature.of(self._request, ticket.candidate.endpoint)
        splice = None if priority is None else appended(made.body, b"priority", priority)
        self._added = splice is not None
        if splice is None:
            return made
        self._feature.sent += 1
        return msgspec.structs.replace(made, body=spliced(made.body, splice))

    def takes_back(self, attempt: LayeredAttempt) -> bool:
        added, self._added = self._added, False
        self._refused = self._refused or added
        return added

    def answered(self, attempt: LayeredAttempt, tail: Sequence[bytes], usage: Usage) -> None:
        served = attempt.response is not None and attempt.response.status < 400
        if self._refused and served:
            self._feature.refused(attempt.ticket.candidate.endpoint)
