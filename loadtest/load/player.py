"""Plays one process's share of an order: starts sessions when they are due, and makes a record of each request.

The first call of a session in an open loop is due by the schedule. Every other call is due when the client, a person or
a program, is ready for it: its pause after the answer before it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from random import Random

import msgspec

from loadtest.load.arrivals import arrivals
from loadtest.load.http import Client
from loadtest.load.order import Order, TrafficClass
from loadtest.load.pacer import Pacer
from loadtest.load.prompts import Prompts
from loadtest.load.records import Answered
from loadtest.load.seen import Kind, Seen, watch
from loadtest.workload.plan import Call, Session
from loadtest.workload.text import Piece

TICK_S = 0.02
"""Time between two measurements of the loop's own lag."""
EARLY_S = 0.001
"""uvloop wakes up to a millisecond early."""
Due = tuple[float, Session]
Written = tuple[Session, bytes]
"""A session and its first request."""


class Player:
    """Plays the sessions of one process, of those of the order. `place` is the process's number.

    `tell` receives each answer, and may say that it is broken; `lag` receives the client's lag at regular times.
    """

    def __init__(
        self,
        order: Order,
        prompts: Prompts,
        sessions: Iterator[Session],
        tell: Callable[[Answered], None],
        lag: Callable[[float], None],
        place: int = 0,
    ) -> None:
        self._order = order
        self._mine = islice(enumerate(sessions), place, None, order.processes)
        self._place = place
        self._prompts = prompts
        self._tell, self._lag = tell, lag
        self._begin_s = 0.0
        self._client = Client(order.url, headers=order.headers)
        at_once = order.users or order.max_concurrency
        share = 0 if at_once is None else len(range(place, at_once, order.processes))
        self._gate = None if order.is_closed or at_once is None else asyncio.Semaphore(share)
        opening = islice(self._mine, share) if order.is_closed else ()
        self._opening = [self._written(one) for _, one in opening]  # all at once they would take a second of the run

    async def play(self, begin_s: float) -> None:
        """Play from `begin_s` of `time.monotonic` on, and wait for the answers."""
        self._begin_s = begin_s
        ticks = (begin_s + number * TICK_S for number in count())
        ticker = Pacer(lambda due_s: self._lag(time.monotonic() - due_s), ticks)
        try:
            await (self._closed() if self._order.is_closed else self._open())
        finally:
            ticker.stop()
            self._client.close()

    # The open loop.

    async def _open(self) -> None:
        ready: deque[Written] = deque()

        def times() -> Iterator[float]:
            for due_s, session in self._due():
                if due_s >= self._order.length_s:
                    return
                ready.append(self._written(session))  # before it is due
                yield self._begin_s + due_s

        async with asyncio.TaskGroup() as group:

            def start(due_s: float) -> None:
                group.create_task(self._session(*ready.popleft(), due_s))

            pacer = Pacer(start, times())
            try:
                await pacer.over
            finally:
                pacer.stop()

    def _due(self) -> Iterator[Due]:
        order = self._order
        if order.timed or order.rates is None:
            yield from ((session.start_s if order.timed else 0.0, session) for _, session in self._mine)
            return
        stretched = order.num_prompts if order.duration_s is None else None
        times = enumerate(arrivals(order.rates, order.burstiness, order.seed, stretched))
        at, at_s = next(times)
        for number, session in self._mine:
            while at < number:
                if (following := next(times, None)) is None:
                    return
                at, at_s = following
            yield at_s, session

    # The closed loop, and users.

    async def _closed(self) -> None:
        await asyncio.sleep(self._begin_s - time.monotonic() + EARLY_S)
        async with asyncio.TaskGroup() as group:
            for number, written in enumerate(self._opening):
                group.create_task(self._one_client(number, written))

    async def _one_client(self, number: int, opening: Written) -> None:
        order = self._order
        rng = Random(f"{order.seed}: client {number} of {self._place}")
        if order.think_s:  # so that users do not all ask at once
            await asyncio.sleep(rng.uniform(0.0, order.think_s))
        for session, request in chain((opening,), ((one, None) for _, one in self._mine)):
            if self._over():
                return
            await self._session(session, request)
            if order.think_s:
                await asyncio.sleep(rng.expovariate(1.0 / order.think_s))

    def _over(self) -> bool:
        return time.monotonic() - self._begin_s >= self._order.length_s

    # A session.

    async def _session(self, session: Session, request: bytes | None = None, due_s: float | None = None) -> None:
        """Play a session up to its first failed call, because later prompts would quote the missing answer."""
        answers: dict[Piece, str] = {}
        of = self._class(session)
        for turn, call in enumerate(session.calls, 1):
            if turn > 1:
                await asyncio.sleep(call.pause_s)
                if self._over():
                    return
                due_s = None
            request = request or self._request(session, call, answers)
            now_s = time.monotonic()
            seen = Seen(now_s if due_s is None else due_s)
            lag_s = now_s - seen.began_s
            waited_s = await self._ask(request, seen)
            request = None
            kind = of.name if of else call.kind
            self._tell(Answered(session, turn, kind, seen, self._begin_s, lag_s, waited_s))
            if seen.kind is not Kind.COMPLETE:
                return
            answers[call.answer] = seen.text

    def _written(self, session: Session) -> Written:
        return session, self._request(session, session.calls[0], {})

    def _class(self, session: Session) -> TrafficClass | None:
        """Return the session's class, the same in every process."""
        classes = self._order.classes
        rng = Random(f"{self._order.seed}: class of {session.id}")
        return rng.choices(classes, [one.weight for one in classes])[0] if classes else None

    def _request(self, session: Session, call: Call, answers: dict[Piece, str]) -> bytes:
        body = msgspec.json.encode(self._prompts.body(call, answers))
        named = self._order.session_header
        headers = {} if named is None else {named: f"{self._order.seed}-{session.id}"}
        if (of := self._class(session)) is not None:
            headers |= of.headers
        return self._client.request_bytes("POST", self._order.endpoint, body, headers)

    async def _ask(self, request: bytes, seen: Seen) -> float:
        """Send a request once the limit lets it; return the seconds for which it waited."""
        if self._gate is None:
            await self._watch(request, seen)
            return 0.0
        waits, began_s = self._gate.locked(), time.monotonic()
        async with self._gate:
            waited_s = time.monotonic() - began_s if waits else 0.0
            await self._watch(request, seen)
            return waited_s

    async def _watch(self, request: bytes, seen: Seen) -> None:
        try:
            async with asyncio.timeout(self._order.limit_s):
                await watch(self._client, request, seen)
        except TimeoutError:
            seen.end(Kind.CUT, f"no end after {self._order.limit_s:g} s")
            seen.ended_s = time.monotonic()
