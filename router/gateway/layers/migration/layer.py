"""The feature: it tracks the streams of the routes that want it, and says how an answer goes on after a death."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from router.config.model import RouteConfig
from router.gateway.flow.resuming import DRAIN
from router.gateway.layers.migration.continuation_body import ContinuationBody
from router.gateway.layers.migration.drains import Drains, MovableRequest
from router.gateway.layers.migration.eligibility import LATER, ON_ARRIVAL, Ineligible, fields_of, refusal_on_arrival
from router.gateway.layers.migration.leg_filter import LegFilter
from router.gateway.layers.migration.permits import Permits
from router.gateway.layers.migration.request_fields import TrackedFields
from router.gateway.layers.migration.resumed_prompt import resumed_prompt
from router.gateway.layers.migration.resumed_stream import (
    RESUMED,
    Death,
    LegAfterDeath,
    RestartedStream,
    ResumedStream,
)
from router.gateway.layers.migration.settings import MigrationSettings
from router.gateway.layers.migration.tracked_stream import TrackedStream
from router.gateway.layers.migration.whole_tokens import WholeTokens
from router.metrics.instruments import Reading
from router.placement.decision_log.decisions import Seam
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import WorkerState
from router.placement.request import Request, Usage
from router.placement.tickets import Ticket
from router.requests.layer import LayeredAttempt, LayeredRequest, Rewrite, RewriteFeature, settings_by_route
from router.requests.metrics import GatewayMetrics
from router.requests.outgoing import OutgoingBody
from router.requests.rewrites.json_splice import appended, spliced
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, ParsedBody, as_bool

_MOST_MODELS: Final = 64
_ONCE: Final = (Ineligible.OPTED_OUT, Ineligible.SIGNED, Ineligible.SEVERAL_ANSWERS, Ineligible.TRANSFER)
"""Requests that do not begin again, although the client has the role alone."""
AGAIN_BYTES: Final = 65_536
"""Larger bodies are not kept for an answer that may have to begin again."""
TRACKED: Final = "tracked"
WHOLE_ANSWER: Final = "whole_answer"
"""What a preview says of requests without a stream, which are retried."""


class Migration(RewriteFeature):
    """`counts` are the requests of these routes by what became of the question for ids."""

    name: ClassVar[str] = "migration"
    settings: ClassVar[type[msgspec.Struct]] = MigrationSettings

    def __init__(
        self,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        metrics: GatewayMetrics,
        running: Collection[MovableRequest],
    ) -> None:
        self._fleet = fleet
        self._running = running
        self._by_route: dict[str, MigrationSettings] = {}
        self._prefills_per_worker = 1
        self.metrics = metrics
        self.time = loop.time
        self.permits = Permits(loop, lambda: self._prefills_per_worker * fleet.serving)
        self.drains = Drains(fleet, loop, running, self.permits, self._drain_after_s)
        self._whole: dict[str | None, WholeTokens] = {}
        self.counts = dict.fromkeys((TRACKED, *ON_ARRIVAL, *LATER), 0)

    def adopt(self, routes: Sequence[RouteConfig]) -> bool:
        wanted = settings_by_route(routes, self.name, self.settings)
        self._by_route = {route: one for route, one in wanted.items() if one.limit}
        self._prefills_per_worker = max([one.prefills_per_worker for one in self._by_route.values()], default=1)
        self.drains.switch(bool(self._by_route))
        return bool(self._by_route)

    def close(self) -> None:
        self.drains.switch(False)

    def rewrite(self, request: LayeredRequest, parsed: ParsedBody) -> Rewrite | None:
        return MigrationRewrite(self, request) if parsed.stream else None

    def previewed(self, incoming: LayeredRequest, body: bytes, request: Request) -> Mapping[str, Any]:
        settings = self._by_route.get(request.route)
        if settings is None:
            return {}
        why: str | None = WHOLE_ANSWER
        if request.stream:
            why = refusal_on_arrival(incoming.head, fields_of(body), request.prompt_tokens, settings.max_tokens)
        return {"migration": {"reason": why, "limit": settings.limit, "drain_after_s": settings.drain_after_s}}

    def of(self, route: str) -> MigrationSettings | None:
        return self._by_route.get(route)

    def _drain_after_s(self, route: str) -> float | None:
        settings = self._by_route.get(route)
        return None if settings is None else settings.drain_after_s

    def whole_tokens(self, model: str | None) -> WholeTokens:
        known = self._whole.get(model)
        if known is None:
            if len(self._whole) >= _MOST_MODELS:
                self._whole.clear()
            known = self._whole[model] = WholeTokens()
        return known

    def pool_lost(self, lost: str, model: str | None) -> bool:
        """Return whether more than half of the workers of a model are gone, `lost` included."""
        pool = [one for one in self._fleet.endpoints if one.may_serve(model)]
        gone = sum(one.id == lost or one.state is WorkerState.UNHEALTHY for one in pool)
        return 2 * gone > len(pool)

    def readings(self) -> Iterable[Reading]:
        for reason, count in self.counts.items():
            yield "warmroute_migration_requests", (str(reason),), count

    def statistics(self) -> Mapping[str, Any]:
        return {
            "migration": {
                "waiting": self.permits.waiting,
                "kept_bytes": sum(one.kept_bytes for one in self._running),
                "requests": {str(reason): count for reason, count in self.counts.items() if count},
            }
        }


class MigrationRewrite(Rewrite):
    """One stream: whether it can go on elsewhere, what is known of it, and how often it has."""

    __slots__ = (
        "_again", "_body", "_counted", "_feature", "_leg", "_moves", "_refused_ids", "_request",
        "_salt", "_settings", "_stream",
    )  # fmt: skip

    def __init__(self, feature: Migration, request: LayeredRequest) -> None:
        self._feature = feature
        self._request = request
        self._settings: MigrationSettings | None = None
        self._counted = self._refused_ids = False
        self._salt: str | None = None
        self._body: ContinuationBody | None = None
        self._stream: TrackedStream | None = None
        self._leg: LegFilter | None = None
        """The filter of the first leg, as it was last sent."""
        self._again: OutgoingBody | None = None
        """What the worker of a stream without ids got."""
        self._moves = 0

    # the first leg

    def outgoing(self, made: OutgoingBody, ticket: Ticket, now_s: float) -> OutgoingBody:
        settings = self._settings = self._feature.of(ticket.request.route)
        self._leg = self._stream = self._body = self._again = None
        if settings is None:
            return made
        fields = fields_of(made.body)
        why = refusal_on_arrival(self._request.head, fields, ticket.request.prompt_tokens, settings.max_tokens)
        if why is None and self._refused_ids:
            why = Ineligible.REFUSED_IDS
        if why is not None or fields is None:
            self._count(why or Ineligible.BODY)
            ticket.record.migration = str(why or Ineligible.BODY)
            begins_again = why not in _ONCE and self._request.head.path == CHAT_PATH
            self._again = made if begins_again and len(made.body) <= AGAIN_BYTES else None
            return made
        self._count(TRACKED)
        ticket.record.migration = TRACKED
        return self._asking(made, fields, settings, ticket)

    def _asking(
        self, made: OutgoingBody, fields: TrackedFields, settings: MigrationSettings, ticket: Ticket
    ) -> OutgoingBody:
        body, path = made.body, self._request.head.path
        asks = as_bool(fields.return_token_ids) is True
        logprobs = fields.logprobs is not None and fields.logprobs is not False
        counts = logprobs and path == COMPLETIONS_PATH
        self._salt = fields.cache_salt if isinstance(fields.cache_salt, str) else None
        whole = self._feature.whole_tokens(ticket.request.model)
        self._stream = TrackedStream(path, settings.max_tokens, whole, hides=not asks, counts=counts)
        options = fields.stream_options
        self._stream.asks_usage = isinstance(options, dict) and as_bool(options.get("include_usage")) is True
        self._body = ContinuationBody(path, body, fields)
        self._leg = LegFilter(self._stream, made.answer_filter, self.may_go_on, holds=asks or logprobs)
        if not asks:
            question = appended(body, b"return_token_ids", b"true")
            assert question is not None  # the body was decoded as an object
            body = spliced(body, question)
        return OutgoingBody(body, self._leg)

    def _count(self, what: str) -> None:
        if not self._counted:
            self._counted = True
            self._feature.counts[what] += 1

    def takes_back(self, attempt: LayeredAttempt) -> bool:
        """Send further attempts without the question: another engine refuses it."""
        leg = self._leg
        if leg is None or not leg.stream.hides or attempt.answer_filter is not leg:
            return False
        self._leg = self._body = self._stream = None
        self._refused_ids = True
        self._feature.counts[Ineligible.REFUSED_IDS] += 1
        return True

    @property
    def kept_bytes(self) -> int:
        parts_bytes = 0 if self._again is None else len(self._again.body)
        parts_bytes += 0 if self._body is None else self._body.kept_bytes
        return parts_bytes + (0 if self._stream is None else self._stream.kept_bytes)

    def begun(self) -> None:
        self._again = None
        if self._stream is not None and self._stream.lost is not None:
            self._body = None

    def answered(self, attempt: LayeredAttempt, tail: Sequence[bytes], usage: Usage) -> None:
        answer, stream = attempt.response, self._stream
        lost = stream.refusal if stream is not None and answer is not None and answer.events else None
        if lost is not None and lost in LATER:
            self._feature.counts[lost] += 1
            attempt.ticket.record.migration = str(lost)

    # after a death

    def may_go_on(self) -> bool:
        return self._why_not() is None

    def _why_not(self, *, dies: bool = True) -> Ineligible | None:
        stream, settings, body = self._stream, self._settings, self._body
        if stream is None or settings is None or body is None:
            return Ineligible.NO_IDS if stream is None or stream.lost is None else stream.lost
        if dies and self._moves >= settings.limit:
            return Ineligible.LIMIT
        if stream.refusal is not None:
            return stream.refusal
        budget = body.budget(stream.clean)
        return Ineligible.FINISHED if budget is not None and budget <= 0 else None

    def resumption(self, attempt: LayeredAttempt, trigger: str, read_s: float, preamble: bytes) -> LegAfterDeath | None:
        ended, request, dies = attempt.answer_filter, attempt.ticket.request, trigger != DRAIN
        tracked, moves = isinstance(ended, LegFilter), self._settings is not None
        candidate, record, kept = attempt.ticket.candidate, attempt.ticket.record, self._stream
        seam = Seam((ended.broken if ended else "") or trigger, candidate.id, kept.clean if tracked and kept else 0)
        death = Death(candidate.endpoint.id, record, seam, read_s)
        why = self._why_not(dies=dies) if tracked else self._why_not_again(preamble, dies=dies)
        if moves and why is None and self._feature.pool_lost(death.lost, request.model):
            why = Ineligible.POOL_LOST
        if why is not None or not moves:
            if tracked and dies:
                seam.outcome = str(why)
                record.add_seam(seam)
                self.settled(death)
            return None
        self._moves += dies
        if isinstance(ended, LegFilter):
            return self._rest(request, candidate.block_tokens, death, ended)
        assert self._again is not None
        return RestartedStream(self, request, death, self._again, preamble)

    def _why_not_again(self, preamble: bytes, *, dies: bool) -> Ineligible | None:
        """Return why an answer that cannot go on cannot begin again either."""
        settings = self._settings
        if settings is None or self._again is None or not preamble:
            return Ineligible.NO_IDS
        return Ineligible.LIMIT if dies and self._moves >= settings.limit else None

    def _rest(self, request: Request, block_tokens: int, death: Death, ended: LegFilter) -> ResumedStream:
        stream, body = self._stream, self._body
        assert stream is not None and body is not None
        assert stream.prompt is not None  # else there would be a refusal
        request = resumed_prompt(request, stream.prompt, stream.output, stream.clean, block_tokens, self._salt)
        request = msgspec.structs.replace(request, max_tokens=body.budget(stream.clean))
        return ResumedStream(self, request, death, stream, body, ended)

    @property
    def permits(self) -> Permits:
        return self._feature.permits

    def settled(self, death: Death) -> None:
        metrics, seam = self._feature.metrics, death.seam
        metrics.migrations.add(1.0, (seam.trigger, seam.outcome))
        if seam.outcome == RESUMED:
            metrics.migration_gaps.observe(self._feature.time() - death.read_s)
