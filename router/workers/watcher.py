from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator
from typing import Any

from backends.vllm.operations import WorkerOperation
from backends.worker import KvEventSource, parse_endpoint
from router.config.model import KvEventsConfig, WorkerConfig
from router.metrics.instruments import Reading
from router.workers.endpoint_watch import EndpointWatch
from router.workers.watch_context import WatchContext

SPREAD_S = 30.0
"""Time over which the first probes are spread of workers that join together, if they are more than `SPREAD_FROM`."""
SPREAD_FROM = 64
LOOK_AGAIN_S = 1.0
"""Minimum time between two full probes of all endpoints on demand, because clients can cause them."""


class Watcher:
    """Start and end the watch over each endpoint, all on one event loop.

    The caller changes the fleet: call `watch` after `Fleet.add`, and `forget` just before `Fleet.remove`. Slots are
    reused, so no subscription may outlive its candidate.
    """

    def __init__(self, context: WatchContext) -> None:
        self._context = context
        self._fleet = context.fleet
        self._looked_s = -math.inf
        self._watches: dict[str, EndpointWatch] = {}
        self.spread_s = SPREAD_S
        """Less while another process waits for this one's first probes."""
        self._joined: list[EndpointWatch] = []
        """Watches that started in this iteration of the event loop."""
        self._ending: set[asyncio.Task[None]] = set()
        self._events = {
            parse_endpoint(worker.url).authority: configured_events(worker.kv_events)
            for worker in context.config.workers
            if worker.kv_events is not None
        }
        self._api_keys = {parse_endpoint(worker.url).authority: worker.api_key for worker in context.config.workers}

    def start(self) -> None:
        """Watch every endpoint of the fleet."""
        for endpoint in self._fleet.endpoints:
            self.watch(endpoint.id)

    def watch(self, endpoint_id: str, worker: WorkerConfig | None = None) -> None:
        """Watch an endpoint of the fleet. `worker` has the settings of an endpoint that was added at run time.

        Raises:
            KeyError: the fleet has no such endpoint.
        """
        endpoint = self._fleet.get(endpoint_id)
        if endpoint is None:
            raise KeyError(endpoint_id)
        if worker is not None:
            self._api_keys[endpoint_id] = worker.api_key
            self._events.pop(endpoint_id, None)
            if worker.kv_events is not None:
                self._events[endpoint_id] = configured_events(worker.kv_events)
        if endpoint_id in self._watches:  # events between the two watches are lost
            for candidate in endpoint.candidates:
                self._context.residency.slot(candidate.slot).link_lost()
        self._end(endpoint_id)
        watch = self._watches[endpoint_id] = EndpointWatch(
            self._context, endpoint, self._events.get(endpoint_id), self._api_keys.get(endpoint_id)
        )
        if not self._joined:
            asyncio.get_running_loop().call_soon(self._spread)  # before the first of them probes
        self._joined.append(watch)
        watch.start()

    def _spread(self) -> None:
        joined, self._joined = self._joined, []
        if len(joined) > SPREAD_FROM:
            for number, watch in enumerate(joined):
                watch.probe_later(number * self.spread_s / len(joined))

    def forget(self, endpoint_id: str) -> None:
        """Stop watching an endpoint that leaves the fleet. Its sockets are closed when this returns."""
        self._events.pop(endpoint_id, None)
        self._api_keys.pop(endpoint_id, None)
        self._end(endpoint_id)

    def look_again(self) -> None:
        """Probe all endpoints, because a client asked for a model that no worker is known to serve.

        A LoRA adapter may have been loaded or unloaded. The call is cheap, so every such request may make it: it probes
        at most once in `LOOK_AGAIN_S`. The fleet's `on_change` runs if the probes find something new.
        """
        now_s = self._context.clock()
        if now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = now_s
            for watch in self._watches.values():
                watch.look_again()

    def test_again(self, models: Collection[str]) -> None:
        """Repeat the self-tests of workers that serve one of `models`, because other files tokenise its prompts."""
        for watch in self._watches.values():
            watch.test_again(models)

    def look_again_at(self, endpoint_id: str) -> None:
        """Probe everything of one endpoint soon, because it has changed."""
        watch = self._watches.get(endpoint_id)
        if watch is not None:
            watch.look_again()

    async def operate(self, endpoint_id: str, wanted: WorkerOperation) -> None:
        """Carry out an operation on an endpoint.

        Raises:
            KeyError: it is not watched.
            RefusedError: it answered, and did not do it.
            ProbeError: it gave no answer.
        """
        await self._watches[endpoint_id].operate(wanted)

    def look_for_process(self, endpoint_id: str) -> None:
        """Check soon whether the same process still answers at an endpoint."""
        watch = self._watches.get(endpoint_id)
        if watch is not None:
            watch.look_for_process()

    async def aclose(self) -> None:
        for endpoint_id in list(self._watches):
            self._end(endpoint_id)
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._context.zmq_context.destroy(linger=0)

    def statistics(self) -> dict[str, Any]:
        return {
            "endpoints": {endpoint_id: watch.statistics() for endpoint_id, watch in self._watches.items()},
        }

    def readings(self) -> Iterator[Reading]:
        """Yield the state of the event links."""
        for watch in self._watches.values():
            for worker, subscription in watch.statistics()["subscriptions"].items():
                yield "warmroute_event_link_up", (worker,), float(subscription["linked"])
                if subscription["lag_s"] is not None:
                    yield "warmroute_event_lag_seconds", (worker,), subscription["lag_s"]

    def _end(self, endpoint_id: str) -> None:
        watch = self._watches.pop(endpoint_id, None)
        task = watch.close() if watch is not None else None
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def configured_events(events: KvEventsConfig) -> KvEventSource:
    return KvEventSource(0, events.endpoint, events.replay_endpoint, buffer_steps=10_000)
