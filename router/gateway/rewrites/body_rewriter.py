"""Three of the four rewrites of request bodies: cache isolation, usage observation and cache re-announcement.

The fourth, another model's name, is in `model_name`.

All other bytes go to the worker unchanged. Each rewrite is one splice (`json_splice`). Isolation is on if the port has
API keys, and a body that cannot be salted with certainty is refused. Usage is observed in a sample of streams, and
re-announcement is off by default. A body is sent without them if the splice is uncertain, or if the client signed or
digested the bytes.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import msgspec

from router.config.model import Config
from router.gateway.http.upstream.response_head import ResponseHead
from router.gateway.rewrites.usage_frame import StreamEnding, UsageFrame, plain_ending
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.request import Usage
from router.placement.tickets import Ticket
from router.requests.request_head import RequestHead
from router.requests.rewrites.json_splice import Splice, appended, salted, set_inner, spliced
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, PROMPT_PATHS, ParsedBody, as_bool

_USAGE_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH})
"""Streams of the other two APIs always report their usage."""
VOUCHED = frozenset({b"content-digest", b"repr-digest", b"digest", b"content-md5", b"signature", b"content-encoding"})
"""Request headers that depend on the exact bytes of the body."""
MAX_SEARCHED_BYTES = 1_048_576
"""Larger bodies are not searched for the place of a splice, because that takes about 1 ms per MB."""
FIRST_STREAMS = 32
"""So many streams of a worker and path are asked for usage before the share counts, so that little traffic is enough
to fill what an operator sees."""
RELEARN_SINCE = (0, 26)
"""The first vLLM version that announces reused blocks again. Earlier versions ignore the field."""
BUSY_KV_USAGE = 0.9
"""Above this KV usage, a request may wait for blocks, and vLLM announces the prefix of the first waiting request again
at every step."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class Relearn(Protocol):
    """Decides which requests ask a worker to announce their prefix again. `ResidencyMap` implements it."""

    def asks_again(self, slot: int, ticket_id: int, now_s: float) -> bool:
        """Return whether the placed request should ask. Repeated calls return the same."""


class OutgoingBody(msgspec.Struct, frozen=True):
    """Head and body for the worker, and the filter for the response if a usage frame must be removed."""

    head: RequestHead
    body: bytes
    usage_frame: UsageFrame | None = None


class RequestRewrites:
    """The rewrites that apply to one request.

    `observed`: its stream may be asked for usage. `metered`: it is asked whenever possible, because its caller pays by
    tokens.
    """

    __slots__ = ("_refused_by", "_relearns", "_rewrites", "metered", "observed", "parsed", "path")

    def __init__(
        self, rewrites: BodyRewriter, path: str, parsed: ParsedBody, observed: bool, relearns: bool, metered: bool
    ) -> None:
        self._rewrites = rewrites
        self._relearns = relearns
        self._refused_by: FleetEndpoint | None = None
        self.path = path
        self.parsed = parsed
        self.observed = observed
        self.metered = metered

    def outgoing(self, head: RequestHead, body: bytes, ticket: Ticket, now_s: float) -> OutgoingBody:
        rewrites = self._rewrites
        splices: list[Splice] = []
        frame = rewrites.observe(self, body, ticket, splices) if self.observed else None
        if self._relearns:
            rewrites.relearn(self, body, ticket, now_s, splices)
        return OutgoingBody(head, spliced(body, splices) if splices else body, frame)

    def unask(self, endpoint: FleetEndpoint) -> None:
        """Send further attempts without the question for usage: `endpoint` refused the one that had it."""
        self.observed = False
        self._refused_by = endpoint

    def answered(
        self,
        endpoint: FleetEndpoint,
        response: ResponseHead,
        usage_frame: UsageFrame | None,
        tail: list[bytes],
        usage: Usage,
    ) -> None:
        """Learn from a complete answer of `endpoint`; `tail` is the end of its body."""
        rewrites = self._rewrites
        if usage_frame is not None:
            rewrites.observed(usage_frame)
        elif self._refused_by is endpoint:
            if response.status < 400:
                rewrites.never_ask(endpoint, self.path)
        elif self.observed and response.events and response.status == 200 and rewrites.needs_plain(endpoint, self.path):
            rewrites.saw_plain(endpoint, self.path, tail, usage)


class _Streams:
    """The streams of one worker and path: how they end unchanged, and how many were asked for usage.

    `ending` is None if the worker refuses the question.
    """

    __slots__ = ("asked", "ending")

    def __init__(self, ending: StreamEnding | None) -> None:
        self.ending = ending
        self.asked = 0


class BodyRewriter:
    """Decides which requests are rewritten, and remembers how workers end their streams.

    Streams that do not ask for usage are changed to ask for it, and the usage frame is removed from the response: all
    streams of callers with a token limit, and with `observe_usage` above 0 a sample of the others. The sample is the
    first `FIRST_STREAMS` of each worker and path, and later a share.

    The first stream of each worker and path is sent unchanged, for two reasons. Some workers report usage unasked. And
    vLLM ends a stream differently without a usage frame (`usage_frame.Stamp`).
    """

    def __init__(self, config: Config, fleet: Fleet, relearn: Relearn | None) -> None:
        self._sample = config.observe_usage
        self._relearn = relearn
        self._share = 0.0
        self._streams: dict[tuple[FleetEndpoint, str], _Streams] = {}
        self._fleet = fleet
        self._counts = dict.fromkeys(
            (
                "salted", "usage_asked", "usage_taken_out", "usage_missing", "usage_refused", "relearn_asked",
                "not_rewritable",
            ),
            0,
        )  # fmt: skip
        self._samples = self._sample > 0.0
        fleet.on_loss.append(self._forget)

    def of(self, head: RequestHead, parsed: ParsedBody, *, metered: bool = False) -> RequestRewrites | None:
        """Return the rewrites for a request, or None. `metered`: its caller has a limit of tokens."""
        path = head.path
        observed = parsed.stream and (metered or self._samples) and path in _USAGE_PATHS and _hides_usage(parsed)
        relearns = self._relearn is not None and self._may_relearn(path, parsed)
        if not (observed or relearns) or not VOUCHED.isdisjoint(head.fields):
            return None
        return RequestRewrites(self, path, parsed, observed, relearns, metered)

    def _may_relearn(self, path: str, parsed: ParsedBody) -> bool:
        readable = path in PROMPT_PATHS and parsed.size_bytes <= MAX_SEARCHED_BYTES
        return readable and parsed.reads_cache and parsed.answers == 1

    def _sampled(self, streams: _Streams) -> bool:
        if streams.asked < FIRST_STREAMS:
            return True
        self._share += self._sample
        if self._share < 1.0:
            return False
        self._share -= 1.0
        return True

    # isolation

    def salt(self, body: bytes, salt: str, *, counted: bool = True) -> bytes:
        """Return `body` with the tenant's cache salt.

        Raises:
            RequestError: the salt cannot be added with certainty.
        """
        self._counts["salted"] += counted
        return salted(body, salt)

    # usage observation

    def observe(
        self, rewriting: RequestRewrites, body: bytes, ticket: Ticket, splices: list[Splice]
    ) -> UsageFrame | None:
        """Ask for usage in this stream if the worker is known not to report it. Return the filter for the response."""
        streams = self._streams.get((ticket.candidate.endpoint, rewriting.path))
        if streams is None or streams.ending is None or streams.ending.reports_usage:
            return None
        if not rewriting.metered and not self._sampled(streams):
            return None
        splice = _asking(body, rewriting.parsed.fields.stream_options)
        if splice is None:
            self._counts["not_rewritable"] += 1
            return None
        streams.asked += 1
        self._counts["usage_asked"] += 1
        splices.append(splice)
        return UsageFrame(streams.ending.stamp)

    def needs_plain(self, endpoint: FleetEndpoint, path: str) -> bool:
        """Return whether the ending of this worker's unchanged streams is still unknown."""
        return (endpoint, path) not in self._streams

    def saw_plain(self, endpoint: FleetEndpoint, path: str, tail: list[bytes], usage: Usage) -> None:
        plain = plain_ending(tail, usage != Usage())
        if plain is not None:
            self._streams[endpoint, path] = _Streams(plain)

    def never_ask(self, endpoint: FleetEndpoint, path: str) -> None:
        """Record that the worker refuses the question for usage, and serves the same request without it."""
        self._counts["usage_refused"] += 1
        self._streams[endpoint, path] = _Streams(None)

    def observed(self, frame: UsageFrame) -> None:
        self._counts["usage_taken_out" if frame.taken else "usage_missing"] += 1

    def _forget(self, lost: FleetEndpoint) -> None:
        self._streams = {place: streams for place, streams in self._streams.items() if place[0] is not lost}

    # cache re-announcement

    def relearn(
        self, rewriting: RequestRewrites, body: bytes, ticket: Ticket, now_s: float, splices: list[Splice]
    ) -> None:
        """Ask the worker to announce the reused blocks again, if wanted and if the worker is not busy."""
        candidate, load = ticket.candidate, ticket.candidate.load
        facts = candidate.endpoint.facts
        if load is not None and (load.waiting or load.kv_usage > BUSY_KV_USAGE):
            return
        if facts is not None and not _announces_again(facts.version):
            return
        present = rewriting.parsed.fields.vllm_xargs
        if isinstance(present, dict) and "kv_cache_report_mode" in present:
            return
        splice = set_inner(body, "vllm_xargs", "kv_cache_report_mode", b'"full"', present)
        if self._relearn is None or splice is None:
            self._counts["not_rewritable"] += 1
        elif self._relearn.asks_again(candidate.slot, ticket.id, now_s):
            self._counts["relearn_asked"] += 1
            splices.append(splice)

    def close(self) -> None:
        if self._forget in self._fleet.on_loss:
            self._fleet.on_loss.remove(self._forget)

    def statistics(self) -> dict[str, int]:
        return dict(self._counts)


def _hides_usage(parsed: ParsedBody) -> bool:
    options = parsed.fields.stream_options
    return options is None or (isinstance(options, dict) and as_bool(options.get("include_usage")) is not True)


def _asking(body: bytes, options: Any) -> Splice | None:
    """Return the splice that asks for usage, and adds nothing else to the stream. `options` are the body's own."""
    if options is None or as_bool(options.get("continuous_usage_stats") or 0):
        # Without include_usage the other option has no effect; with it, each event would report usage.
        return appended(body, b"stream_options", b'{"include_usage":true}')
    if len(body) > MAX_SEARCHED_BYTES:
        return None
    return set_inner(body, "stream_options", "include_usage", b"true", options)


def _announces_again(version: str | None) -> bool:
    found = _VERSION.match(version or "")
    return found is None or (int(found[1]), int(found[2])) >= RELEARN_SINCE
