"""The relays of one worker: one subscription and one relay per rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from backends.worker import KvEventSource
from router.config.model import Config
from router.sidecar.event_relay import EventRelay
from router.workers.event_pump import EventPump
from router.workers.subscriber import Subscriber, SubscriberMetrics

log = logging.getLogger("warmroute.sidecar")

_ANY = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True, slots=True)
class RelayEvents:
    """What a relay's events call: `moved` with the rank at each batch, `lost` when a link to the engine drops, and
    `iterated` with the seconds that one iteration of the event loop spent on events."""

    moved: Callable[[int], None]
    lost: Callable[[], None]
    iterated: Callable[[float], None]


class EventRelays:
    """Follow the publishers that probes of `worker` find."""

    def __init__(self, config: Config, worker: str, metrics: SubscriberMetrics, events: RelayEvents) -> None:
        self._settings = config.sidecar
        self._host = "*" if config.host in _ANY else config.host.strip("[]")
        self._worker = worker
        self._metrics = metrics
        self._events = events
        self._pump = EventPump(events.iterated)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._relays: dict[int, tuple[Subscriber, EventRelay]] = {}

    def fit(self, sources: Sequence[KvEventSource]) -> None:
        """Relay exactly these publishers."""
        wanted = {source.rank: source for source in sources}
        for rank in [rank for rank, (subscriber, _) in self._relays.items() if wanted.get(rank) != subscriber.source]:
            self._end(rank)
        for rank in wanted.keys() - self._relays.keys():
            self._begin(wanted[rank])

    def describe(self) -> dict[str, Any]:
        """Return the answer of ``/kv_event_sources``."""
        described = {str(rank): relay.describe() for rank, (_, relay) in sorted(self._relays.items())}
        return {rank: one for rank, one in described.items() if one is not None}

    def statistics(self) -> dict[int, dict[str, Any]]:
        """Return the state of each rank's relay."""
        return {rank: relay.statistics() for rank, (_, relay) in self._relays.items()}

    def close(self) -> None:
        for rank in list(self._relays):
            self._end(rank)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _begin(self, source: KvEventSource) -> None:
        rank, settings = source.rank, self._settings
        first = (settings.kv_events_port, settings.kv_events_replay_port)
        ports = (first[0] and first[0] + rank, first[1] and first[1] + rank)
        relay = EventRelay(source, self._host, ports, settings.kv_events_buffer_bytes, lambda: self._events.moved(rank))
        if self._context is None:
            self._context = zmq.Context(io_threads=1)
        subscriber = Subscriber(
            self._context,
            self._pump,
            relay,
            self._metrics,
            slot=rank,
            worker=self._worker,
            source=source,
            on_lost=self._events.lost,
        )
        try:
            subscriber.start()
        except zmq.ZMQError as error:
            log.warning("no KV events", extra={"source": source.endpoint, "reason": str(error)})
            return
        self._relays[rank] = subscriber, relay

    def _end(self, rank: int) -> None:
        subscriber, relay = self._relays.pop(rank)
        subscriber.close()
        relay.close()
