"""Usage observation: streams that do not ask for usage are changed to ask, and the usage frame is removed again.

All streams of callers with a token limit are asked, and with `observe_usage` above 0 a sample of the others: the first
`FIRST_STREAMS` of each worker and path, and later a share. The question is one splice in the body (`json_splice`); a
body is sent without it if the splice is uncertain, or if the client signed or digested the bytes.

The first stream of each worker and path is sent unchanged, for two reasons. Some workers report usage unasked. And
vLLM ends a stream differently without a usage frame (`usage_frame.Stamp`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from router.gateway.layers.usage.usage_frame import StreamEnding, UsageFrame, plain_ending
from router.metrics.instruments import Reading
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.request import Usage
from router.placement.tickets import Ticket
from router.requests.layer import LayeredAttempt, LayeredRequest, Rewrite, RewriteFeature
from router.requests.outgoing import OutgoingBody
from router.requests.rewrites.json_splice import MAX_SEARCHED_BYTES, VOUCHED, Splice, appended, set_inner, spliced
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, ParsedBody, as_bool

_USAGE_PATHS: Final = frozenset({CHAT_PATH, COMPLETIONS_PATH})
"""Streams of the other two APIs always report their usage."""
FIRST_STREAMS: Final = 32
"""So many streams of a worker and path are asked for usage before the share counts, so that little traffic is enough
to fill what an operator sees."""


class _Streams:
    """The streams of one worker and path: how they end unchanged, and how many were asked for usage.

    `ending` is None if the worker refuses the question.
    """

    __slots__ = ("asked", "ending")

    def __init__(self, ending: StreamEnding | None) -> None:
        self.ending = ending
        self.asked = 0


class UsageObservation(RewriteFeature):
    """Decides which streams are asked, and remembers how workers end their streams."""

    def __init__(self, sample: float, fleet: Fleet) -> None:
        self._sample = sample
        self._share = 0.0
        self._streams: dict[tuple[FleetEndpoint, str], _Streams] = {}
        self._fleet = fleet
        self.counts = dict.fromkeys(("asked", "taken_out", "missing", "refused", "not_rewritable"), 0)
        fleet.on_loss.append(self._forget)

    def rewrite(self, request: LayeredRequest, parsed: ParsedBody) -> Rewrite | None:
        head, limits, options = request.head, request.caller.limits, parsed.fields.stream_options
        if not parsed.stream or head.path not in _USAGE_PATHS or not _hides_usage(options):
            return None
        metered = limits is not None and limits.by_tokens
        if not (metered or self._sample) or not VOUCHED.isdisjoint(head.fields):
            return None
        return UsageRewrite(self, head.path, options, metered)

    def ask(
        self, path: str, metered: bool, options: Any, body: bytes, ticket: Ticket
    ) -> tuple[Splice, UsageFrame] | None:
        """Return the question, if the worker is known not to report usage, and the filter for the response."""
        streams = self._streams.get((ticket.candidate.endpoint, path))
        if streams is None or streams.ending is None or streams.ending.reports_usage:
            return None
        if not metered and not self._sampled(streams):
            return None
        splice = _asking(body, options)
        if splice is None:
            self.counts["not_rewritable"] += 1
            return None
        streams.asked += 1
        self.counts["asked"] += 1
        return splice, UsageFrame(streams.ending.stamp)

    def _sampled(self, streams: _Streams) -> bool:
        if streams.asked < FIRST_STREAMS:
            return True
        self._share += self._sample
        if self._share < 1.0:
            return False
        self._share -= 1.0
        return True

    def saw_plain(self, endpoint: FleetEndpoint, path: str, tail: Sequence[bytes], usage: Usage) -> None:
        """Learn how the worker's unchanged streams end, if that is still unknown."""
        if (endpoint, path) not in self._streams:
            # not `usage != Usage()`: mypyc compares structs by identity
            reported = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
            plain = plain_ending(tail, any(count is not None for count in reported))
            if plain is not None:
                self._streams[endpoint, path] = _Streams(plain)

    def never_ask(self, endpoint: FleetEndpoint, path: str) -> None:
        """Record that the worker refuses the question for usage, and serves the same request without it."""
        self.counts["refused"] += 1
        self._streams[endpoint, path] = _Streams(None)

    def _forget(self, lost: FleetEndpoint) -> None:
        self._streams = {place: streams for place, streams in self._streams.items() if place[0] is not lost}

    def close(self) -> None:
        if self._forget in self._fleet.on_loss:
            self._fleet.on_loss.remove(self._forget)

    def readings(self) -> Iterable[Reading]:
        yield "warmroute_rewrites", ("observe_usage",), self.counts["asked"]

    def statistics(self) -> dict[str, Any]:
        return {"usage": dict(self.counts)}


class UsageRewrite(Rewrite):
    """`metered`: the stream is asked whenever possible, because its caller pays by tokens."""

    __slots__ = ("_feature", "_frame", "_metered", "_options", "_path", "_refused_by")

    def __init__(self, feature: UsageObservation, path: str, options: Any, metered: bool) -> None:
        self._feature = feature
        self._path = path
        self._options = options
        self._metered = metered
        self._frame: UsageFrame | None = None
        """The filter of the request as it was last sent with the question."""
        self._refused_by: FleetEndpoint | None = None
        """The worker that may have refused the question. No further attempt has it."""

    def outgoing(self, made: OutgoingBody, ticket: Ticket, now_s: float) -> OutgoingBody:
        if self._refused_by is not None:
            return made
        asked = self._feature.ask(self._path, self._metered, self._options, made.body, ticket)
        if asked is None:
            return made
        splice, self._frame = asked
        return OutgoingBody(spliced(made.body, splice), self._frame)

    def takes_back(self, attempt: LayeredAttempt) -> bool:
        """Send further attempts without the question, if this one had it: an old vLLM refuses it."""
        answer_filter = attempt.answer_filter
        if self._frame is None or answer_filter is None or not answer_filter.has(self._frame):
            return False
        self._refused_by = attempt.ticket.candidate.endpoint
        return True

    def answered(self, attempt: LayeredAttempt, tail: Sequence[bytes], usage: Usage) -> None:
        feature, endpoint, response = self._feature, attempt.ticket.candidate.endpoint, attempt.response
        answer_filter = attempt.answer_filter
        if response is None:
            return
        if answer_filter is not None and not answer_filter.keeps_ending:
            if self._frame is not None and answer_filter.has(self._frame) and response.events:
                feature.counts["taken_out" if self._frame.taken else "missing"] += 1
        elif self._refused_by is endpoint:
            if response.status < 400:
                feature.never_ask(endpoint, self._path)
        elif self._refused_by is None and response.events and response.status == 200:
            feature.saw_plain(endpoint, self._path, tail, usage)


def _hides_usage(options: Any) -> bool:
    return options is None or (isinstance(options, dict) and as_bool(options.get("include_usage")) is not True)


def _asking(body: bytes, options: Any) -> Splice | None:
    """Return the splice that asks for usage, and adds nothing else to the stream. `options` are the body's own."""
    if options is None or as_bool(options.get("continuous_usage_stats") or 0):
        # Without include_usage the other option has no effect; with it, each event would report usage.
        return appended(body, b"stream_options", b'{"include_usage":true}')
    if len(body) > MAX_SEARCHED_BYTES:
        return None
    return set_inner(body, "stream_options", "include_usage", b"true", options)
