"""Publish the KV events of one rank again, from a larger buffer and to any number of gateways.

The relay's sockets behave as the engine's own would. Batches keep their numbers and bytes. The sockets are open while
the link to the engine is up and no replay runs, so that a gateway sees an engine that went and came back as it would
without the sidecar: its link drops, and the replay after it shows whether the same engine still counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from backends.vllm.event_publisher import EventBuffer, EventSockets
from backends.worker import KvEventSource
from router.residency.sequence import EventSequence, SequenceStep
from router.residency.view import Ingest, ViewState

HWM = 1_000
"""Batches queued for one gateway that is slow. It then asks for a replay."""
BIND_AGAIN_S = 1.0

log = logging.getLogger("warmroute.sidecar")


class EventRelay:
    """Satisfies `router.workers.subscriber.EventSink`, and publishes what it takes.

    `ports` are those of PUB and replay, 0 for one that the system chooses once. `on_batch` is called for each batch of
    the engine.
    """

    def __init__(
        self,
        source: KvEventSource,
        host: str,
        ports: tuple[int, int],
        buffer_bytes: int,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._host = host
        self._ports = ports
        self._on_batch = on_batch
        self._sequence = EventSequence()
        self._buffer = EventBuffer(max_bytes=buffer_bytes)
        self._sockets = EventSockets(source.topic, self._buffer, HWM, lambda: self._proved)
        self._linked = False
        self._endpoints: tuple[str, str] | None = None
        self._open = False
        self._again: asyncio.TimerHandle | None = None

    @property
    def _proved(self) -> bool:
        """Whether the buffer holds all batches since the engine's start, or since a gap that its numbers show."""
        return self._sequence.verified and not self._sequence.assumed

    def describe(self) -> dict[str, Any] | None:
        """Return the entry of ``/kv_event_sources``; None before the sockets were open for the first time.

        It names no replay socket while the buffer may lack batches that no gap shows: an empty replay would then say
        that nothing is cached.
        """
        if self._endpoints is None:
            return None
        endpoint, replay_endpoint = self._endpoints
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay_endpoint if self._proved or self._source.replay_endpoint else None,
            "buffer_steps": max(self._source.buffer_steps, len(self._buffer)),
            "hwm": HWM,
            "max_queue_size": HWM,
            "topic": self._source.topic,
        }

    def close(self) -> None:
        self._linked = False
        self._fit()

    def statistics(self) -> dict[str, Any]:
        """Return the link, the batches in order and kept, and the replays answered."""
        return {
            "open": self._open,
            **self._sequence.statistics(),
            **self._buffer.statistics(),
            **self._sockets.statistics(),
        }

    # sink

    def events_from(self, slot: int, address: str, topic: str = "") -> None:
        log.info("relaying KV events", extra={"source": address, "topic": topic})

    def link_up(self, slot: int) -> Ingest:
        """Ask for a replay, to know what was missed. The sockets open when it has ended."""
        self._linked = True
        return self._do(self._sequence.link_up())

    def link_lost(self, slot: int) -> None:
        """Close the sockets, because the engine's would be closed."""
        self._linked = False
        self._sequence.link_lost()
        self._fit()

    def ingest(self, slot: int, seq: int, payload: bytes, *, replayed: bool = False) -> Ingest:
        """Publish one batch, or keep it until those before it are here."""
        self._on_batch()
        sequence = self._sequence
        return self._do(sequence.offer_replayed(seq, payload) if replayed else sequence.offer(seq, payload))

    def replay_ended(self, slot: int, ok: bool) -> Ingest:
        """Open the sockets. Without a replay nothing shows which batches were missed, so those before it go."""
        step = self._sequence.replay_ended(ok)
        if not ok and not self._sequence.verified:
            self._buffer.clear()
        return self._do(step)

    def state(self, slot: int) -> ViewState:
        """Raise KeyError: a relay has no view."""
        raise KeyError(slot)

    def _do(self, step: SequenceStep) -> Ingest:
        if step.restarted:
            log.warning("the engine's events count from 0 again", extra={"source": self._source.endpoint})
            self._buffer.clear()
            self._shut()
        for seq, payload in step.ready:
            self._buffer.append(seq, payload)
            if self._open:
                self._sockets.publish(seq, payload)
        self._fit()
        missing = step.lost[1] - step.lost[0] if step.lost is not None else 0
        return Ingest(step.outcome, step.replay_from, missing)

    def _fit(self) -> None:
        """Open or close the sockets, as the link says. A replay during an open link leaves them open."""
        if not self._linked:
            self._shut()
        elif not self._open and not self._sequence.replaying and self._again is None:
            self._bind()

    def _bind(self) -> None:
        self._again = None
        ports = self._ports
        if self._endpoints is not None and not all(ports):
            ports = tuple(int(endpoint.rpartition(":")[2]) for endpoint in self._endpoints)  # type: ignore[assignment]
        try:
            endpoints = self._sockets.open(self._host, *ports)
        except OSError as error:
            log.error("KV events cannot be published", extra={"reason": str(error)})
            self._again = asyncio.get_running_loop().call_later(BIND_AGAIN_S, self._bind)
            return
        self._open = True
        self._endpoints = endpoints

    def _shut(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._open:
            self._open = False
            self._sockets.close()
