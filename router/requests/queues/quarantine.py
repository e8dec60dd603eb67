"""Prevent a request body that crashes workers from crashing the whole fleet.

`router.placement.fleet.query_of_death` keeps the record of suspected bodies. This module feeds it and applies its
verdicts. After the first lost worker, requests with the suspected body may go to one further worker at a time. After
the second lost worker they go to none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from xxhash import xxh3_128_intdigest

from backends.worker import Endpoint
from router.errors import ErrorKind, RequestError
from router.metrics.instruments import Counter
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import SERVING
from router.placement.fleet.query_of_death import PROOF_S, BodyVerdict, QueryOfDeathTracker
from router.requests.queues.gone_workers import refuses
from router.requests.queues.request import WaitingRequest

LOOKS_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, PROOF_S)
"""When the gateway dials a worker that has failed a request, in seconds from the failure."""
LOOK_LIMIT_S = 1.0
"""How long a dial may take. A slower one is given up and proves nothing."""
PATHS_KEPT = 1_024
RETRY_AFTER_S = 1.0
"""Retry-After for a request whose verdict is open: by then the worker has been dialled several times."""

_DOUBTED = "Workers were lost while they had this request. It goes to no other worker until it is known why; try again."


class Quarantine:
    """Finds out whether workers that failed requests have died, and limits the workers that a request may go to."""

    def __init__(
        self,
        query_of_death: QueryOfDeathTracker,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        requests: Iterable[WaitingRequest],
        deaths: Counter,
        changed: Callable[[], None],
    ) -> None:
        self.query_of_death = query_of_death
        self._fleet = fleet
        self._loop = loop
        self._requests = requests
        self._deaths = deaths
        self._changed = changed
        self._seeds: dict[str, int] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self.refused_requests = 0
        if query_of_death.enabled:
            fleet.on_process.append(self.process_seen)

    @property
    def active(self) -> bool:
        """Whether any body may be suspected: a quick test for the hot path."""
        query_of_death = self.query_of_death
        return query_of_death.stirred and query_of_death.active(self._loop.time())

    # where a request may go

    def within(self, body: int, failed: tuple[str, ...]) -> frozenset[str] | None:
        """Return the endpoints that the request with this body key may go to; None for all.

        `failed` lists the endpoints that have failed the request. They are left out where a body may go to one
        further worker.

        Raises:
            RequestError: the request may go to no endpoint.
        """
        now_s = self._loop.time()
        match self.query_of_death.verdict(body, now_s):
            case BodyVerdict.FREE:
                return None
            case BodyVerdict.ONE_MORE:
                return self._holders({body}) - {*failed} or self._apart(body, failed)
            case BodyVerdict.NO_MORE:
                return self._holders({body}) | frozenset(self.query_of_death.erred(body, now_s))
            case BodyVerdict.DOUBTED:
                raise RequestError(ErrorKind.WORKER_FAILED, _DOUBTED, retry_after_s=RETRY_AFTER_S)
            case BodyVerdict.REFUSED:
                self.refused_requests += 1
                raise RequestError(ErrorKind.REQUEST_CRASHES_WORKERS, self._why_refused(body, now_s))

    def _why_refused(self, body: int, now_s: float) -> str:
        wait_s = self.query_of_death.refused_for_s(body, now_s)
        return (
            "The last two workers that were given this request died before they answered it. "
            f"The same request is refused for another {wait_s:.0f} s."
        )

    def _apart(self, body: int, failed: tuple[str, ...]) -> frozenset[str] | None:
        """Return the endpoints without another body suspected of the same death.

        Return None if no endpoint has one, or if no endpoint is left without one.

        Each suspect goes to a worker of its own. The body that crashes workers then crashes its worker alone, and the
        answers of the other workers clear the other bodies. Endpoints that may have died or have failed the request
        are left out.
        """
        taken = self._holders(self.query_of_death.companions(body))
        now_s = self._loop.time()
        free = frozenset(
            endpoint.id
            for endpoint in self._fleet.endpoints
            if endpoint.state in SERVING
            and endpoint.id not in taken
            and endpoint.id not in failed
            and not self.query_of_death.waits(endpoint.id, now_s)
        )
        return free if taken and free else None

    def _holders(self, bodies: set[int]) -> frozenset[str]:
        """Return the endpoints where a request with one of `bodies` waits for its first token, or is being sent.

        Endpoints that may have died are left out.
        """
        now_s = self._loop.time()
        found = {
            endpoint.id for request in self._requests if request.body_key in bodies for endpoint in request.awaited
        }
        return frozenset(endpoint_id for endpoint_id in found if not self.query_of_death.waits(endpoint_id, now_s))

    # what happens

    def failed(self, endpoint: FleetEndpoint, body: int, connected_s: float, *, lost: bool) -> None:
        """Record that `endpoint` failed the request with this body key before its first token.

        `lost`: the connection broke; otherwise the worker answered with a server error. The connection was made at
        `connected_s`.
        """
        if not self.query_of_death.enabled or not body:
            return
        incident = self.query_of_death.known(endpoint.id, connected_s, lost=lost)
        if incident is not None:
            self.query_of_death.join(incident, body)
            return
        others = {other.body_key for other in self._requests if endpoint in other.unanswered} - {0}
        self.query_of_death.open(endpoint.id, body, others, self._loop.time(), lost=lost)
        self._fleet.doubt(endpoint)
        if endpoint.id not in self._looks:
            self._looks[endpoint.id] = self._loop.create_task(self._look(endpoint), name=f"look at {endpoint.id}")

    def survived(self, body: int) -> None:
        """Record that the request with this body key received its first token, or its whole answer."""
        self.query_of_death.survived(body)
        self._changed()

    def answered(self, body: int, now_s: float, *, identified: bool) -> None:
        """Record that the request with this body key received its whole answer. `identified`: its body was parsed."""
        if identified and self.query_of_death.enabled:
            self.query_of_death.served.add(body, now_s)
        if self.active:
            self.survived(body)

    def key(self, path: str, digest: int) -> int:
        """Return the key of a body with this digest. Equal bodies on different paths are different requests."""
        seed = self._seeds.get(path)
        if seed is None:
            if len(self._seeds) >= PATHS_KEPT:
                self._seeds.clear()
            seed = self._seeds[path] = xxh3_128_intdigest(path.encode("utf-8", "surrogatepass"))
        return seed ^ digest

    def refused(self, endpoint: Endpoint) -> None:
        """Record that `endpoint` refused a connection: no process listens there."""
        if self.query_of_death.waits(endpoint.authority, self._loop.time()):
            self._gone(endpoint.authority)

    def process_seen(self, endpoint: FleetEndpoint, new: bool, asked_s: float) -> None:
        """Record which process answered a question asked at `asked_s`: a `new` one, or the same as before."""
        if new:
            self._gone(endpoint.id)
        else:
            self.query_of_death.lives(endpoint.id, asked_s)

    def _gone(self, endpoint_id: str) -> None:
        for outcome in self.query_of_death.gone(endpoint_id, self._loop.time()):
            self._deaths.add(1.0, (outcome,))
        self._changed()

    # looking

    async def _look(self, endpoint: FleetEndpoint) -> None:
        """Dial the worker at the times in `LOOKS_S`, repeatedly, until a dial is refused or no incident is open."""
        try:
            while self.query_of_death.waits(endpoint.id, self._loop.time()):
                began_s = self._loop.time()
                for at_s in LOOKS_S:
                    await asyncio.sleep(began_s + at_s - self._loop.time())
                    if not self.query_of_death.waits(endpoint.id, self._loop.time()):
                        break
                    await self._dial(endpoint.endpoint)
        finally:
            del self._looks[endpoint.id]
            self.query_of_death.expire(self._loop.time())
            self._changed()

    async def _dial(self, endpoint: Endpoint) -> None:
        if await refuses(self._loop, endpoint, LOOK_LIMIT_S):
            self.refused(endpoint)

    def close(self) -> None:
        for look in self._looks.values():
            look.cancel()
        if self.process_seen in self._fleet.on_process:
            self._fleet.on_process.remove(self.process_seen)

    def statistics(self) -> dict[str, Any]:
        return {**self.query_of_death.statistics(), "refused_requests": self.refused_requests}
