"""The paths that answer prompts: plain ASGI, to keep the cost of a token low."""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from backends.simulated.dialects import MessagesDialect, ResponsesDialect
from backends.simulated.errors import ApiError
from backends.simulated.frames import DONE, AnswerHead, ApiShape, Frames, Stream, usage, whole_body
from backends.simulated.generation import ClientGone, Delivery, EngineDied, Generation, Inbox
from backends.simulated.kv.kv_transfers import FailedLoad
from backends.simulated.prompts import UnknownToken
from backends.simulated.request import (
    GIVEN_IDS_PARAM,
    ChatBody,
    CompletionBody,
    check_supported,
    read_body,
    read_object,
    split_prompts,
)
from backends.simulated.worker import SimulatedWorker

Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")


class StreamedError(ApiError):
    """An error that is the first event of a stream, because the head with status 200 is on its way."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    head: AnswerHead
    body: ChatBody | CompletionBody
    prompts: Sequence[Sequence[int]]
    inbox: Inbox
    generations: list[Generation]
    remote_cached_tokens: int | None = None
    """Tokens that the worker which computed the prompt had cached; None if this worker computes it."""


async def read_request(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    every = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": every})
    await send({"type": "http.response.body", "body": body})


async def begin_stream(send: Send, headers: Headers) -> None:
    """Send the head. As from vLLM, it leaves before prefill: only the first event shows that the engine runs."""
    every = [(b"content-type", b"text/event-stream; charset=utf-8"), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": every})


class AnswerPath(ABC):
    def __init__(self, worker: SimulatedWorker, id_prefix: str) -> None:
        self._worker = worker
        self._id_prefix = id_prefix

    @abstractmethod
    def _read(self, values: dict[str, Any]) -> ChatBody | CompletionBody:
        """Return the fields of a body that the engine needs; raises `ApiError` 400."""

    @abstractmethod
    async def _prompts(self, body: ChatBody | CompletionBody, values: dict[str, Any]) -> list[list[int]]:
        """Return the ids of all prompts of a body; raises `ApiError` 400."""

    @abstractmethod
    async def _whole(self, call: EngineCall, receive: Receive, send: Send, headers: Headers) -> None: ...

    @abstractmethod
    async def _stream(self, call: EngineCall, receive: Receive, send: Send, headers: Headers) -> None: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        echoed = self._echoed(request_id)
        self._worker.server_load += 1
        try:
            raw = await read_request(receive)
            content_type = headers.get(b"content-type", b"").decode("latin-1")
            call = await self._submit(raw, content_type, request_id, receive)
            await (self._stream if call.body.stream else self._whole)(call, receive, send, echoed)
        except StreamedError as error:
            await begin_stream(send, echoed)
            event = self._introduction() + b"data: " + error.body() + b"\n\n" + DONE
            await send({"type": "http.response.body", "body": event})
        except ApiError as error:
            await send_json(send, int(error.status), error.body(), echoed)
        except ClientGone:
            return
        finally:
            self._worker.server_load -= 1

    def _introduction(self) -> bytes:
        """Return the events that come before the first token, or before an error in its place."""
        return b""

    def _echoed(self, request_id: str) -> Headers:
        if not self._worker.settings.request_id_headers:
            return []
        return [(b"x-request-id", (request_id or uuid.uuid4().hex).encode("latin-1"))]

    async def _submit(self, raw: bytes, content_type: str, request_id: str, receive: Receive) -> EngineCall:
        values = read_object(raw, content_type)
        body = self._read(values)
        self._worker.adapter(body.model)
        check_supported(body)
        prompts = await self._prompts(body, values)
        identity = self._id_prefix + (request_id or body.request_id or uuid.uuid4().hex)
        cached_tokens = await self._received(body, prompts, identity, receive)
        head = AnswerHead(identity, int(time.time()), body.model or self._worker.settings.model_name)
        received, loaded_tokens = cached_tokens is not None, await self._loaded(body, prompts, receive)
        inbox, generations = self._worker.submit(
            prompts, body, identity, received=received, loaded_tokens=loaded_tokens
        )
        return EngineCall(head, body, prompts, inbox, generations, cached_tokens)

    async def _received(
        self, body: ChatBody | CompletionBody, prompts: Sequence[Sequence[int]], identity: str, receive: Receive
    ) -> int | None:
        """Load the prompts' KV cache, if the body says from where. Return the tokens that count as cached."""
        worker, params = self._worker, body.kv_transfer_params
        if worker.store.enabled:
            if len(prompts) > 1:
                return None
            load = worker.store.load(prompts[0], body.cache_salt, worker.adapter(body.model))
            return await self._loading(load, body, receive)
        if params is None:
            return None
        return await self._loading(worker.transfers.receive(params, sum(map(len, prompts)), identity), body, receive)

    async def _loaded(
        self, body: ChatBody | CompletionBody, prompts: Sequence[Sequence[int]], receive: Receive
    ) -> list[int]:
        """Load what the tier of peers has of each prompt. Return the tokens; nothing without such a tier."""
        tier, params, lora_name = self._worker.peer_tier, body.kv_transfer_params, self._worker.adapter(body.model)
        if tier is None:
            return []
        return [
            await self._loading(tier.load(params, ids, lora_name, body.cache_salt), body, receive) for ids in prompts
        ]

    @staticmethod
    async def _loading(load: Coroutine[Any, Any, T], body: ChatBody | CompletionBody, receive: Receive) -> T:
        """Return the result of `load`; raises `ClientGone` if the client leaves before."""
        loading, leaving = asyncio.ensure_future(load), asyncio.ensure_future(receive())
        try:
            await asyncio.wait((loading, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                raise ClientGone
            return loading.result()
        except FailedLoad as error:
            raise StreamedError(error.message, status=error.status) if body.stream else error from None
        finally:
            loading.cancel()
            leaving.cancel()

    @asynccontextmanager
    async def _watched(self, call: EngineCall, receive: Receive) -> AsyncIterator[None]:
        """Abort in the engine as soon as the client leaves, and in any case at the end."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._abort(call)
            call.inbox.client_gone()

        watcher = asyncio.get_running_loop().create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()
            self._abort(call)

    def _abort(self, call: EngineCall) -> None:
        for generation in call.generations:
            self._worker.abort(generation)

    async def _complete(self, call: EngineCall, receive: Receive) -> None:
        async with self._watched(call, receive):
            while any(generation.finish_reason is None for generation in call.generations):
                for generation, token_id, reason in await call.inbox.take():
                    generation.take(token_id, reason)


class AnswerApp(AnswerPath):
    """/v1/chat/completions or /v1/completions."""

    def __init__(self, worker: SimulatedWorker, shape: ApiShape) -> None:
        super().__init__(worker, shape.id_prefix)
        self._shape = shape

    def _read(self, values: dict[str, Any]) -> ChatBody | CompletionBody:
        return read_body(ChatBody, values) if self._shape.chat else read_body(CompletionBody, values)

    async def _prompts(self, body: ChatBody | CompletionBody, values: dict[str, Any]) -> list[list[int]]:
        reader = self._worker.prompts
        if (given := body.given_ids) is not None:
            return [reader.ids(given, GIVEN_IDS_PARAM)]
        if isinstance(body, ChatBody):
            if not body.messages:
                raise ApiError("messages must not be empty.", param="messages")
            return [await reader.chat(values)]
        prompts = split_prompts(body.prompt)
        try:
            return [await reader.text(each) if isinstance(each, str) else reader.ids(each) for each in prompts]
        except UnknownToken as error:
            # vLLM's engine checks ids of completions, when a stream has its head.
            raise StreamedError(error.message, param=error.param) if body.stream else error from None

    async def _whole(self, call: EngineCall, receive: Receive, send: Send, headers: Headers) -> None:
        await self._complete(call, receive)
        # vLLM reports the cached tokens of the last prompt only.
        numbers = usage(call.generations, self._cached_tokens(call, call.generations[-1]))
        prompts = call.prompts if call.body.return_token_ids else None
        params = self._worker.transfers.offered(call.generations[-1].state, call.body.kv_transfer_params)
        body = whole_body(self._shape, call.head, call.generations, numbers, prompts, params)
        await send_json(send, 200, body, headers)

    async def _stream(self, call: EngineCall, receive: Receive, send: Send, headers: Headers) -> None:
        await begin_stream(send, headers)
        frames = Frames(self._shape, call.head, with_ids=bool(call.body.return_token_ids))
        params = call.body.kv_transfer_params
        stream = Stream(frames, call.prompts, lambda state: self._worker.transfers.offered(state, params))
        try:
            async with self._watched(call, receive):
                while stream.ended < len(call.generations):
                    await self._pass_on(await call.inbox.take(), stream, send)
            tail = self._tail(call, stream, frames)
        except EngineDied as error:
            tail = b"data: " + error.body() + b"\n\n" + DONE
        await send({"type": "http.response.body", "body": tail, "more_body": False})

    async def _pass_on(self, deliveries: list[Delivery], stream: Stream, send: Send) -> None:
        death = self._worker.death
        spared, dies = death.spared(deliveries)
        parts = [frame for delivery in spared for frame in stream.frames(*delivery)]
        if dies and not spared:
            parts = stream.opening(deliveries[0][0])
        await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
        if dies:
            death.struck()

    def _tail(self, call: EngineCall, stream: Stream, frames: Frames) -> bytes:
        options = call.body.stream_options
        if options is None or not options.include_usage:
            return DONE
        # A stream of several prompts reports the cached tokens of the one that answered first.
        cached_tokens = self._cached_tokens(call, stream.first or call.generations[0])
        return frames.usage(usage(call.generations, cached_tokens)) + DONE

    def _cached_tokens(self, call: EngineCall, generation: Generation) -> int | None:
        return _cached_tokens(call, generation) if self._worker.settings.prompt_tokens_details else None


def _cached_tokens(call: EngineCall, generation: Generation) -> int:
    own = generation.state.cached_tokens or 0
    return own if call.remote_cached_tokens is None else call.remote_cached_tokens


class DialectApp(AnswerPath):
    """/v1/messages or /v1/responses: one prompt, one text."""

    def __init__(self, worker: SimulatedWorker, dialect: MessagesDialect | ResponsesDialect) -> None:
        super().__init__(worker, dialect.id_prefix)
        self._dialect = dialect

    def _read(self, values: dict[str, Any]) -> ChatBody | CompletionBody:
        return self._dialect.read(values)

    async def _prompts(self, body: ChatBody | CompletionBody, values: dict[str, Any]) -> list[list[int]]:
        if (given := body.given_ids) is not None:
            return [self._worker.prompts.ids(given, GIVEN_IDS_PARAM)]
        return [await self._dialect.prompt(self._worker.prompts, values)]

    def _introduction(self) -> bytes:
        head = AnswerHead(self._id_prefix + uuid.uuid4().hex, int(time.time()), self._worker.settings.model_name)
        return self._dialect.introduction(head)

    async def _whole(self, call: EngineCall, receive: Receive, send: Send, headers: Headers) -> None:
        await self._complete(call, receive)
        (generation,) = call.generations
        prompt = call.prompts[0] if call.body.return_token_ids else None
        params = self._worker.transfers.offered(generation.state, call.body.kv_transfer_params)
        answer = self._dialect.whole(call.head, generation, _cached_tokens(call, generation), prompt)
        answer |= {} if params is None else {"kv_transfer_params": params}
        await send_json(send, 200, msgspec.json.encode(answer), headers)

    async def _stream(self, call: EngineCall, receive: Receive, send: Send, headers: Headers) -> None:
        await begin_stream(send, headers)
        dialect, (generation,) = self._dialect, call.generations
        introduction = dialect.introduction(call.head)
        if introduction:
            await send({"type": "http.response.body", "body": introduction, "more_body": True})
        try:
            async with self._watched(call, receive):
                while generation.finish_reason is None:
                    parts = [self._told(call, delivery) for delivery in await call.inbox.take()]
                    await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
            closing = dialect.closing(call.head, generation, _cached_tokens(call, generation))
        except EngineDied as error:
            closing = dialect.failed(error)
            if not closing:
                return  # the server cuts an answer without an end
        await send({"type": "http.response.body", "body": closing, "more_body": False})

    def _told(self, call: EngineCall, delivery: Delivery) -> bytes:
        generation, token_id, reason = delivery
        opening = b"" if generation.token_ids else self._dialect.opening(call.head, generation)
        text = generation.take(token_id, reason)
        return opening + (self._dialect.token(msgspec.json.encode(text)[1:-1]) if text else b"")
