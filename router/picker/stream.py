"""One stream of a gateway: read its messages, answer them, and learn from the answer as far as the settings say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Iterator
from typing import Protocol

from google.protobuf.message import DecodeError

from router.errors import ErrorKind, RequestError
from router.picker.answers import PASS_HEADERS, passed, pick_answers, refusal
from router.picker.changes import changes_of
from router.picker.collected_request import UNSAID_S, CollectedRequest, Need
from router.picker.held_body import HeldBody
from router.picker.intake import admitted, incoming_of
from router.picker.learning import AnswerReader
from router.picker.parts import PickerParts
from router.picker.pick import Pick, Sees
from router.picker.pools.worker_pool import WorkerPool
from router.picker.protocol.ext_proc_pb2 import ProcessingMode, ProcessingRequest
from router.security.callers import Caller

log = logging.getLogger("warmroute.picker")

_BODIES = (ProcessingMode.STREAMED, ProcessingMode.FULL_DUPLEX_STREAMED)
_OF_REQUEST = ("request_body", "request_trailers")
_PICKED, _CANCELLED = "picked", "cancelled"
_DRAIN_QUIET_S = 1.0
"""How long a body that passes may pause before a stream that drains ends between two chunks."""


class GatewayLeft(Exception):
    """The gateway has ended the stream, so that nobody reads an answer."""


class Wire(Protocol):
    """A stream of messages."""

    def read(self) -> Awaitable[bytes | None]:
        """Return the next message; None at the end of the gateway's side."""

    def write(self, message: bytes) -> Awaitable[None]:
        """Send an answer. If the call is cancelled, the answer may have been sent.

        Raises:
            GatewayLeft: it cannot be sent.
        """


def _with_last(messages: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each message, and whether it is the last one."""
    before: bytes | None = None
    for message in messages:
        if before is not None:
            yield before, False
        before = message
    if before is not None:
        yield before, True


class PickStream:
    """Serves one stream. The caller ends it with status OK when `serve` returns."""

    def __init__(self, parts: PickerParts, wire: Wire, pool: WorkerPool | None = None) -> None:
        """`pool` is that of the port, if there are several."""
        self._parts = parts
        self._wire = wire
        self._pool = pool
        self._task: asyncio.Task[object] | None = None
        self._caller: Caller | None = None
        self._body: HeldBody | None = None
        self._pick: Pick | None = None
        self._answered = False
        """The last message of the pick's answer has been given to gRPC, so that the gateway may have it all."""
        self._request_id = b""
        self._waiting = False
        """Nothing but a message about the answer is awaited."""
        self._body_passes = False
        self._draining = False

    async def serve(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._serve()
        except GatewayLeft:
            pass
        except asyncio.CancelledError:
            if not (self._draining and self._task is not None and self._task.uncancel() == 0):
                raise
        finally:
            if self._body is not None:
                self._body.give_back()
            if self._pick is not None:
                self._end_early(self._pick)

    def _end_early(self, pick: Pick) -> None:
        """End a pick whose stream ended before its time. A gateway may end it as soon as it has the whole answer."""
        if self._answered and self._parts.settings.learn == "none":
            self._leave(pick)
        else:
            pick.cancel()

    def drain(self) -> None:
        """End the stream as soon as nothing is lost by it: at once while an answer is awaited, else between chunks."""
        self._draining = True
        if self._body_passes:
            self._parts.loop.call_later(_DRAIN_QUIET_S, self._stop_waiting)
        else:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        """End the stream if it waits for a message; else it ends once it has answered the present one."""
        if self._waiting and self._task is not None:
            self._task.cancel()

    def _drains(self) -> bool:
        return self._draining

    async def _serve(self) -> None:
        message = await self._read()
        if message is None:
            return
        if message.observability_mode:
            while message is not None:  # nobody reads an answer
                message = await self._read()
        elif message.HasField("request_headers"):
            await self._request(message)
        else:
            await self._pass(message)

    async def _read(self) -> ProcessingRequest | None:
        """Return the next message; None at the end of the gateway's side."""
        raw = await self._wire.read()
        return None if raw is None else ProcessingRequest.FromString(raw)

    async def _pass(self, message: ProcessingRequest | None) -> None:
        """Let messages pass of a request that this picker has not seen."""
        while message is not None:
            answer = passed(message, ProcessingMode.NONE, message.protocol_config.response_body_mode)
            if answer is not None:
                await self._wire.write(answer)
            message = await self._read()

    # the request

    async def _request(self, first: ProcessingRequest) -> None:
        collected = CollectedRequest(first)
        self._request_id = self._parts.request_ids.of(collected.head)
        try:
            self._caller = admitted(self._parts, collected.head)
            self._body = HeldBody(self._parts.bodies, self._caller.account)
            message = await self._collect(collected)
            if self._pick is not None:
                await self._follow(collected, self._pick, message)
        except RequestError as error:
            await self._refuse(error, collected)
        except (DecodeError, GatewayLeft):
            raise
        except Exception:
            log.exception("a pick failed", extra={"request_id": self._request_id.decode("latin-1")})
            await self._refuse(RequestError(ErrorKind.INTERNAL, "internal error"), collected)

    async def _collect(self, collected: CollectedRequest) -> ProcessingRequest | None:
        """Read until the pick is due, and answer it. Return a message that came after the request, if one was read."""
        need, message = collected.first_need(), None
        if need is Need.PASS:
            await self._wire.write(PASS_HEADERS)
        elif need is Need.MORE_OR_PICK:
            message = await self._first_of_body(collected)
            if message is None or message.WhichOneof("request") not in _OF_REQUEST:
                return message  # the pick by the headers stands
            need = self._take(collected, message)
        while need is not Need.PICK:
            message = await self._read()
            if message is None:
                return None
            need = self._take(collected, message)
        await self._answer(collected)
        return None

    async def _first_of_body(self, collected: CollectedRequest) -> ProcessingRequest | None:
        """Return the message after the headers. If it takes longer than `UNSAID_S`, answer the headers before."""
        reading = asyncio.ensure_future(self._read())
        try:
            done, _ = await asyncio.wait({reading}, timeout=UNSAID_S)
            if not done:
                collected.pick_by_headers()
                await self._answer(collected)
            return await reading
        finally:
            reading.cancel()

    def _take(self, collected: CollectedRequest, message: ProcessingRequest) -> Need:
        need = collected.take(message)
        assert self._body is not None, "the caller is known"
        self._body.grow_to(collected.body_bytes)
        return need

    async def _answer(self, collected: CollectedRequest) -> None:
        """Pick, and write the answer. A pick by the headers alone, before a body, is replaced."""
        parts = self._parts
        earlier, self._pick, self._answered = self._pick, None, False
        if earlier is not None:
            earlier.cancel()
        until_s = parts.time() + parts.settings.pick_s
        assert self._caller is not None and self._body is not None, "it was admitted"
        incoming = incoming_of(parts, collected, self._caller, self._request_id, self._pool)
        pick = self._pick = Pick(parts, incoming, until_s, self._sees(collected))
        body = pick.incoming.body
        try:
            await pick.find(by_headers=collected.by_headers)
            answer = changes_of(parts, pick, collected.head, body)
            for message, last in _with_last(pick_answers(collected, answer)):
                self._answered = last
                await self._wire.write(message)
        except (asyncio.CancelledError, GatewayLeft) as error:
            self._answered = self._answered and not isinstance(error, GatewayLeft)
            self._count(_PICKED if self._answered else _CANCELLED)
            raise
        self._count(_PICKED)
        self._body.give_back()
        collected.release_body()
        pick.incoming.body = b""

    def _sees(self, collected: CollectedRequest) -> Sees:
        learn = self._parts.settings.learn
        if learn == "none":
            return Sees.NOTHING
        return Sees.TOKENS if learn == "all" and collected.response_mode in _BODIES else Sees.END

    def _count(self, outcome: str) -> None:
        self._parts.picks.add(1.0, (outcome, "" if self._pool is None else self._pool.name))

    async def _refuse(self, error: RequestError, collected: CollectedRequest) -> None:
        parts, pick = self._parts, self._pick
        labels = ("", "") if pick is None else pick.served_as
        parts.metrics.errors.add(1.0, (error.kind.spec.code, "before_first", *labels))
        self._count(error.kind.spec.code)
        if pick is not None:
            pick.cancel()
        await self._wire.write(refusal(error, collected.head.path, self._request_id))

    # the answer

    async def _follow(self, collected: CollectedRequest, pick: Pick, message: ProcessingRequest | None) -> None:
        """Stay after a pick for as long as there is something to learn. `message` was read already."""
        parts, sees = self._parts, self._sees(collected)
        if sees is Sees.NOTHING or self._drains():
            self._leave(pick)
            return
        if sees is Sees.END:
            pick.expect_prefill()
        reader = AnswerReader(pick, parts.tickets, parts.identifier.pins)
        try:
            async with asyncio.timeout(parts.config.timeouts.total_s):
                await self._read_answer(collected, reader, message)
        except TimeoutError:
            log.debug("a stream was open for longer than timeouts.total_s")
        finally:
            if self._drains() and not reader.over:
                self._leave(pick)
            else:
                reader.closed(sees_end=collected.response_mode != ProcessingMode.NONE)

    def _leave(self, pick: Pick) -> None:
        """Let the answer pass elsewhere from now on. Its end is predicted."""
        self._pick = None
        pick.expect_end()

    async def _read_answer(
        self, collected: CollectedRequest, reader: AnswerReader, message: ProcessingRequest | None
    ) -> None:
        while (message := message or await self._await_answer()) is not None:
            reader.take(message, self._parts.time())
            answer = passed(message, collected.body_mode, collected.response_mode)
            if answer is not None:
                await self._wire.write(answer)
            self._body_passes = collected.response_mode in _BODIES and reader.status > 0
            if self._drains():
                return
            message = None

    async def _await_answer(self) -> ProcessingRequest | None:
        self._waiting = True
        try:
            return await self._read()
        finally:
            self._waiting = False
