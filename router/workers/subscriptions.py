from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from backends.worker import KvEventSource
from router.placement.fleet.fleet import Candidate
from router.residency.trust import SWITCHED_OFF
from router.workers.subscriber import Subscriber
from router.workers.watch_context import WatchContext

NO_EVENTS = "no KV events: start vLLM with --kv-events-config"

log = logging.getLogger("warmroute.workers")


class Subscriptions:
    """Keep the subscribers in step with the candidates and publishers that probes find."""

    def __init__(self, context: WatchContext, on_lost: Callable[[], None]) -> None:
        self._context = context
        self._on_lost = on_lost
        self._subscribers: dict[Candidate, Subscriber] = {}
        self._refused: dict[str, KvEventSource] = {}

    def fit(self, candidates: Sequence[Candidate], sources: Sequence[KvEventSource]) -> None:
        """Subscribe to exactly these publishers. A view without proof is requested again."""
        by_rank = {source.rank: source for source in sources} if self._context.config.residency.kv_events else {}
        wanted = {candidate: by_rank.get(candidate.rank or 0) for candidate in candidates}
        for candidate, subscriber in list(self._subscribers.items()):
            if wanted.get(candidate) != subscriber.source:
                self._subscribers.pop(candidate).close()
                self._context.residency.slot(candidate.slot).link_lost()
        if not self._context.config.residency.kv_events:
            for candidate in candidates:
                self._context.residency.slot(candidate.slot).switched_off()
        for candidate, source in wanted.items():
            if candidate in self._subscribers:
                self._ask_again(self._subscribers[candidate])
            elif source is not None and self._refused.get(candidate.id) != source:
                self._start(candidate, source)

    def why_not(self, candidate: Candidate) -> str | None:
        """Return the reason why the candidate sends no KV events; None if it sends them."""
        subscriber = self._subscribers.get(candidate)
        if subscriber is not None and subscriber.linked:
            return None
        if not self._context.config.residency.kv_events:
            return SWITCHED_OFF
        source = self._refused.get(candidate.id) if subscriber is None else subscriber.source
        return NO_EVENTS if source is None else f"KV events cannot be reached at {source.endpoint}"

    @property
    def linked(self) -> bool:
        return all(subscriber.linked for subscriber in self._subscribers.values())

    def relearn(self) -> None:
        """Prove every view again with a replay, because the worker may be another process."""
        for subscriber in self._subscribers.values():
            subscriber.relearn()

    def close(self) -> None:
        while self._subscribers:
            self._subscribers.popitem()[1].close()

    def statistics(self) -> dict[str, Any]:
        return {candidate.id: subscriber.statistics() for candidate, subscriber in self._subscribers.items()}

    def _ask_again(self, subscriber: Subscriber) -> None:
        if self._context.residency.slot(subscriber.slot).unproved and subscriber.source.replay_endpoint is not None:
            subscriber.relearn()

    def _start(self, candidate: Candidate, source: KvEventSource) -> None:
        subscriber = self._subscriber(candidate, source)
        try:
            subscriber.start()
        except zmq.ZMQError as error:
            fields = {"worker": candidate.id, "address": source.endpoint, "reason": str(error)}
            log.warning("cannot subscribe to KV events", extra=fields)
            self._refused[candidate.id] = source
        else:
            self._subscribers[candidate] = subscriber

    def _subscriber(self, candidate: Candidate, source: KvEventSource) -> Subscriber:
        return Subscriber(
            self._context.zmq_context,
            self._context.pump,
            self._context.residency,
            self._context.metrics.event_replays,
            slot=candidate.slot,
            worker=candidate.id,
            source=source,
            on_lost=self._on_lost,
        )
