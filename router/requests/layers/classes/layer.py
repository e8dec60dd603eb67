from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from router.config.model import Config, RouteConfig
from router.errors import ErrorKind, RequestError
from router.metrics.instruments import Reading
from router.placement.admission.admission import Admission, Waits
from router.placement.admission.classes import Claim
from router.placement.admission.prediction import EarlyRefusal
from router.placement.admission.preemption import Sent
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.request import Request
from router.placement.tickets import Held, Queued, Reject, Ticket
from router.requests.incoming import IncomingRequest
from router.requests.layer import Feature, Layer, LayeredRequest
from router.requests.layers.classes.claims import Claims
from router.requests.layers.classes.levels import ClassLevels, LevelLayer
from router.requests.queues.request import LeavingRequest, WaitingRequest, count

_TENANTS_SHOWN: Final = 100
_HELD: Final = Held(None, 0.0)
REFUSALS: Final = ("predicted-wait", "waited", "queue-full")


class RequestClasses(Feature):
    """The requests that wait for their turn, on the event loop: `router.placement.admission` decides."""

    def __init__(
        self,
        config: Config,
        core: DecisionCore,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        running: Collection[LeavingRequest] | None = None,
    ) -> None:
        """`running` are the requests in progress, if they can leave a worker."""
        self._claims = Claims(config)
        self._classes = self._claims.classes
        classes = list(self._classes.values())
        self._admission: Admission[IncomingRequest] = Admission(
            classes,
            core.dispatcher,
            fleet,
            core.loads,
            core.tickets,
            Random(),
            self._leaves if running is not None else None,
        )
        self._running: Collection[LeavingRequest] = () if running is None else running
        self._preempted = {(name, outcome): 0 for name in self._classes for outcome in ("waits", "left")}
        self._levels = ClassLevels(classes)
        self._most = config.limits.max_queued_requests
        self._loop, self._fleet, self._tickets = loop, fleet, core.tickets
        self._waiting: dict[IncomingRequest, WaitingRequest] = {}
        self._offered: IncomingRequest | None = None
        """The request whose turn it is, until it asks."""
        self._late: set[IncomingRequest] = set()
        """Requests that have waited for too long, until they ask."""
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._refusals = {(name, reason): 0 for name in self._classes for reason in REFUSALS}
        core.tickets.on_room.append(self._room)
        fleet.on_change.append(self._changed)

    def adopt(self, routes: Sequence[RouteConfig]) -> bool:
        self._claims.adopt(routes)
        return bool(self._levels)  # the gate asks it in any case

    def layer(self, request: LayeredRequest) -> Layer | None:
        return LevelLayer(self._levels, request)

    def claim(self, incoming: IncomingRequest, request: Request) -> Claim:
        return self._claims.of(incoming, request.route)

    def ask(
        self, incoming: IncomingRequest, request: Request, now_s: float, within: frozenset[str] | None
    ) -> Ticket | Held | Queued | Reject | RequestError:
        if self._offered is incoming:
            self._offered = None
        if incoming.claim is None:
            incoming.claim = self.claim(incoming, request)
        if incoming.begun and not incoming.claim.begun:
            incoming.claim = replace(incoming.claim, begun=True)
        claim = incoming.claim
        if incoming in self._late:
            return self._refused(claim, "waited", "it has waited for as long as its class allows", None)
        answer = self._admission.ask(incoming, request, claim, now_s, within)
        if isinstance(answer, EarlyRefusal):
            why = f"its first token would come in about {answer.wait_s:.1f} s"
            return self._refused(claim, answer.reason, why, answer.retry_after_s)
        if not isinstance(answer, Waits):
            self._gone(incoming)
            return answer
        if incoming not in self._waiting and (refusal := self._no_place(incoming, now_s)) is not None:
            return refusal
        self._turn_soon()
        return _HELD

    def _no_place(self, incoming: IncomingRequest, now_s: float) -> RequestError | None:
        """Return the error if the request may not wait, and take it out again."""
        account, claim = incoming.caller.account, incoming.claim
        assert claim is not None
        if claim.begun:
            return None
        if len(self._waiting) >= self._most:
            error = self._refused(claim, "queue-full", f"{self._most} requests wait", None)
        elif account is not None and not account.may_queue:
            error = account.refuse_to_queue()
        else:
            return None
        self._admission.leave(incoming, now_s)
        return error

    def overdue(self, incoming: IncomingRequest) -> RequestError | None:
        if incoming not in self._waiting or incoming.claim is None:
            return None
        self.leave(incoming)
        return self._refused(incoming.claim, "waited", "it has waited for as long as a pick may take", None)

    def _refused(self, claim: Claim, reason: str, why: str, retry_after_s: float | None) -> RequestError:
        self._refusals[claim.of.name, reason] += 1
        message = f"class {claim.of.name}: {why}; try again later"
        return RequestError(ErrorKind.WAIT_TOO_LONG, message, retry_after_s=retry_after_s, reason=reason)

    def enter(self, incoming: IncomingRequest, request: WaitingRequest) -> bool:
        if incoming not in self._admission:
            return False
        if incoming not in self._waiting:
            self._waiting[incoming] = request
            count(request, 1)
        return True

    def leave(self, incoming: IncomingRequest) -> None:
        if incoming is self._offered or incoming not in self._waiting:
            return  # a request leaves its queues before it asks again, and keeps its place here
        self._gone(incoming)
        if self._admission.leave(incoming, self._loop.time()) is not None:
            self._turn_soon()

    def _gone(self, incoming: IncomingRequest) -> None:
        request = self._waiting.pop(incoming, None)
        if request is not None:
            count(request, -1)
            self._late.discard(incoming)

    def _room(self, ticket: Ticket) -> None:
        self._changed()

    def _changed(self) -> None:
        if self._waiting:
            self._turn_soon()

    def _turn_soon(self) -> None:
        """Give a turn in the next iteration, since this is called in the middle of other work."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._loop.time()
        for one in self._admission.expired(now_s):
            self._late.add(one.item)
            self._offer(one.item)
        after_s = self._admission.turn(now_s, self._offer)
        if self._waiting:
            self._timer = self._loop.call_later(after_s, self._turn)

    def _offer(self, incoming: IncomingRequest) -> None:
        request = self._waiting.get(incoming)
        if request is not None:
            self._offered = incoming
            request.offer()
            if self._offered is incoming:  # it has ended, and has not asked
                self._offered = None
                self.leave(incoming)

    def _leaves(self, sent: Sent[IncomingRequest], left: Callable[[bool], None]) -> bool:
        """Let a request leave its worker, if it still can."""
        name = sent.claim.of.name

        def leaves(waits: bool) -> None:
            self._preempted[name, "waits" if waits else "left"] += 1
            left(waits)

        request = next((one for one in self._running if sent.ticket in one.tickets), None)
        return request is not None and request.give_way(sent.claim.of.preemptible, leaves)

    def explained(self, incoming: IncomingRequest, request: Request) -> Mapping[str, object]:
        claim = self.claim(incoming, request)
        turn = self._admission.explained(request, claim, self._loop.time())
        return {"request_class": claim.of.name, "tenant": claim.tenant, **turn}

    def readings(self) -> Iterable[Reading]:
        for name, (requests, seconds) in self._admission.waiting().items():
            yield "warmroute_class_waiting_requests", (name,), requests
            yield "warmroute_class_waiting_seconds", (name,), seconds
        for (name, reason), refused in self._refusals.items():
            yield "warmroute_class_refusals", (name, reason), refused
        for (name, outcome), requests in self._preempted.items():
            yield "warmroute_class_preemptions", (name, outcome), requests
        for (name, tenant), requests in self._by_tenant().items():
            yield "warmroute_class_tenant_waiting_requests", (name, tenant), requests
        yield from self._levels.readings()

    def _by_tenant(self) -> Mapping[tuple[str, str], int]:
        """Return how many requests of each tenant wait, by class. Those beyond the largest ones are counted as one."""
        found: Counter[tuple[str, str]] = Counter()
        for incoming in self._waiting:
            if incoming.claim is not None:
                found[incoming.claim.of.name, incoming.claim.tenant.partition("/")[0]] += 1
        largest = found.most_common(_TENANTS_SHOWN)
        rest: Counter[tuple[str, str]] = Counter()
        for (name, _), requests in found.most_common()[_TENANTS_SHOWN:]:
            rest[name, "other"] += requests
        return {**rest, **dict(largest)}

    def statistics(self) -> Mapping[str, Any]:
        refused = {name: sum(n for (one, _), n in self._refusals.items() if one == name) for name in self._classes}
        late = self._levels.reasons({name: work_s for name, (_, work_s) in self._admission.waiting().items()})
        return {"classes": {"waiting": self._admission.statistics(), "refused": refused, "late": late}}

    def close(self) -> None:
        if self._room in self._tickets.on_room:
            self._tickets.on_room.remove(self._room)
            self._admission.close()
        if self._changed in self._fleet.on_change:
            self._fleet.on_change.remove(self._changed)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
