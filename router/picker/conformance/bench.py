"""What a case works with: the picker, the pool and the hook."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from router.picker.conformance.answers import PickerAnswer
from router.picker.conformance.channel import PlainTarget, open_channel
from router.picker.conformance.fixture import Fixture
from router.picker.conformance.health_client import HealthClient
from router.picker.conformance.hook import ALL, ActionNotOffered, Hook, HookAction
from router.picker.conformance.outcome import CaseFailed
from router.picker.conformance.phases import ask
from router.picker.conformance.requests import GatewayRequest, chat
from router.picker.conformance.stream import ExtProcStream, NoAnswer, open_stream

_POLL_S = 0.05


class Bench:
    def __init__(
        self, fixture: Fixture, hook: Hook | None, target: PlainTarget, channel: Any, health: HealthClient
    ) -> None:
        self.fixture = fixture
        self.patience = fixture.patience
        self.effort = fixture.effort
        self.endpoints = fixture.endpoints
        self.target = target
        self.channel = channel
        self.health = health
        self._hook = hook

    def chat(self, text: str | None = None, filler_bytes: int = 0, **changes: Any) -> GatewayRequest:
        """Return a chat, by default with a prompt of its own; `changes` are fields of `GatewayRequest`."""
        fields = {"body": chat(self.fixture.model, text, filler_bytes), "path": self.fixture.path, **changes}
        return GatewayRequest(**fields)

    def get(self, **changes: Any) -> GatewayRequest:
        return GatewayRequest(**{"body": None, "method": "GET", "path": "/v1/models", **changes})

    @asynccontextmanager
    async def stream(self, channel: Any = None) -> AsyncIterator[ExtProcStream]:
        async with open_stream(channel or self.channel, self.patience.answer_s) as stream:
            yield stream

    async def ask(
        self,
        request: GatewayRequest,
        pieces: Sequence[bytes] | None = None,
        trailers: bool = False,
        channel: Any = None,
    ) -> PickerAnswer:
        """Ask for a pick on a stream of its own, which ends with it."""
        async with self.stream(channel) as stream:
            answer = await ask(stream, request, pieces, trailers)
            await stream.half_close()
            return answer

    async def offer(self, request: GatewayRequest) -> PickerAnswer | None:
        """Ask for a pick; None if the picker keeps the request waiting."""
        asking = asyncio.ensure_future(self.ask(request))
        await asyncio.wait([asking], timeout=self.patience.silence_s * 2)
        if asking.done():
            return asking.result()
        asking.cancel()
        await asyncio.wait([asking])
        return None

    async def spread(self, request: Callable[[], GatewayRequest], count: int) -> list[PickerAnswer]:
        """Ask for `count` picks on streams that are all open until the last one has its pick."""
        opened, done = asyncio.Semaphore(50), asyncio.Event()

        async def one() -> PickerAnswer:
            async with self.stream() as stream:
                async with opened:
                    answer = await ask(stream, request())
                answers.append(answer)
                if len(answers) == count:
                    done.set()
                await done.wait()
                await stream.half_close()
                return answer

        answers: list[PickerAnswer] = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one()) for _ in range(count)]
        return [task.result() for task in tasks]

    @asynccontextmanager
    async def further_channels(self, count: int) -> AsyncIterator[list[Any]]:
        """Yield connections of their own."""
        if count == 0:
            yield []
            return
        async with open_channel(self.target.address) as channel, self.further_channels(count - 1) as others:
            yield [channel, *others]

    async def act(self, action: HookAction, endpoint: str = ALL) -> str:
        if self._hook is None:
            raise ActionNotOffered("no hook was given")
        return await self._hook.run(action, endpoint)

    async def prints(self, action: HookAction) -> bool:
        """Whether the hook offers an action that prints a number."""
        try:
            await self.act(action)
        except ActionNotOffered:
            return False
        return True

    async def count(self, action: HookAction, endpoint: str = ALL) -> float:
        """Return a number that the hook prints.

        Raises:
            CaseFailed: it printed something else.
        """
        printed = await self.act(action, endpoint)
        try:
            return float(printed)
        except ValueError:
            raise CaseFailed(f"the hook printed {printed[:80]!r} for {action}, not a number") from None

    async def counts_to(self, action: HookAction, endpoint: str, expected: float) -> float:
        """Return a number of the hook's when it is as expected, or at last what it is instead."""
        last = float("nan")

        async def arrived() -> bool:
            nonlocal last
            last = await self.count(action, endpoint)
            return last == expected

        await self.until(arrived, self.patience.arrive_s)
        return last

    async def settle(self) -> None:
        """Wait until the picker must know of a change."""
        await asyncio.sleep(self.patience.settle_s)

    @asynccontextmanager
    async def changed(self, action: HookAction, endpoint: str, undo: HookAction) -> AsyncIterator[None]:
        """Change the pool, and change it back."""
        try:
            await self.act(action, endpoint)
            await self.settle()
            yield
        finally:
            await self.act(undo, endpoint)
            await self.settle()

    async def until(self, happened: Callable[[], Awaitable[bool]], within_s: float) -> bool:
        """Whether something happened in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while not await happened():
            if loop.time() > end:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def answers_again(self) -> None:
        """Fail unless the picker picks as usual.

        Raises:
            CaseFailed: it does not.
        """
        try:
            (await self.ask(self.chat())).picked()
        except NoAnswer:
            raise CaseFailed("the picker answers no further request") from None
