"""Endless conversations, played by different kinds of clients.

Answers are whole or streamed, connections kept or new. Some clients leave early, and some read slowly.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from loadtest.load.http import Client
from loadtest.load.seen import Kind, Seen, observe
from loadtest.workload.conversations import Conversation, Shape, generate

_BATCH = 60
_SMALL_BUFFER_BYTES = 8_192
_LONG_ANSWER_TOKENS = 600
_DAWDLE_S = 0.02
_THINK_S = 0.05
LEAVE_WITHIN_S = 2.0
WHOLE, FRESH, SLOW, TEXT = 0.3, 0.3, 0.05, 0.15
"""Shares of the conversations with each property of `Manner`, drawn independently. A slow reader always streams."""
TENANTS = 5
LEAVING = 0.1
"""Probability that a request is abandoned."""
SHAPE = Shape(conversations=_BATCH, turns=4, pause_s=1.0, answer_tokens=48, document_chars=(2_000, 9_000))


@dataclass(frozen=True, slots=True)
class Manner:
    """Behaviour of one conversation's client.

    `fresh` opens a connection for each request, `text` uses the completion API instead of the chat API. `claims` are
    headers that name a class and a tenant.
    """

    stream: bool
    fresh: bool
    slow: bool
    text: bool
    claims: tuple[tuple[str, str], ...] = ()


def conversations(seed: int) -> Iterator[Conversation]:
    """Yield conversations without end; equal seeds give equal conversations."""
    for batch in itertools.count():
        yield from generate(SHAPE, seed * 1_000_003 + batch)


class Traffic:
    """Plays conversations. `seen` is called with the end of each request and its client's behaviour.

    Each conversation claims one of the `classes`, if there are any, and is one of `TENANTS` in the turns there.
    """

    def __init__(
        self, url: str, model: str, seed: int, seen: Callable[[Seen, Manner], None], classes: Sequence[str] = ()
    ) -> None:
        self._classes = classes
        self._url = url
        self._model = model
        self._rng = Random(seed)
        self._seen = seen
        self._kept = Client(url)
        self._slow = Client(url, _SMALL_BUFFER_BYTES)
        self._source = conversations(seed)
        self._stopping = False
        self.running: set[asyncio.Task[Any]] = set()

    async def keep_busy(self, clients: int, duration_s: float | None = None) -> float:
        """Play conversations one after the other, without pauses, by clients that never leave and read at once.

        End after `duration_s`, or with `stop`. Return the complete answers per second.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        finished = 0

        def over() -> bool:
            return self._stopping or (duration_s is not None and loop.time() >= began_s + duration_s)

        async def player() -> None:
            nonlocal finished
            while not over():
                manner = replace(self._manner(), slow=False)
                played = await self._play(next(self._source), manner, Random(0), pauses=False, leaving=0.0)
                finished += played
                await asyncio.sleep(_THINK_S)

        tasks = [asyncio.create_task(player()) for _ in range(clients)]
        self.running.update(tasks)
        try:
            await asyncio.gather(*tasks)
        finally:
            self.running.difference_update(tasks)
        self._kept.close()  # the next request opens new connections
        return finished / (loop.time() - began_s)

    async def run(self, requests_per_s: float) -> None:
        """Start conversations as a Poisson process until cancelled. Started conversations then continue."""
        starts_per_s = requests_per_s / SHAPE.turns
        while True:
            await asyncio.sleep(self._rng.expovariate(starts_per_s))
            rng = Random(self._rng.random())
            playing = self._play(next(self._source), self._manner(), rng, pauses=True, leaving=LEAVING)
            task: asyncio.Task[Any] = asyncio.create_task(playing)
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def stop(self, limit_s: float) -> int:
        """Let requests end, and cut off the rest after `limit_s`; return the number of conversations cut off."""
        self._stopping = True
        if self.running:
            await asyncio.wait(list(self.running), timeout=limit_s)
        late = list(self.running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        self._kept.close()
        self._slow.close()
        return len(late)

    def _manner(self) -> Manner:
        rng = self._rng
        slow = rng.random() < SLOW
        return Manner(
            stream=rng.random() >= WHOLE or slow,
            fresh=rng.random() < FRESH,
            slow=slow,
            text=rng.random() < TEXT,
            claims=self._claims() if self._classes else (),
        )

    def _claims(self) -> tuple[tuple[str, str], ...]:
        tenant = f"tenant-{self._rng.randrange(TENANTS)}"
        return ("x-request-class", self._rng.choice(self._classes)), ("x-llm-d-inference-fairness-id", tenant)

    async def _play(
        self, conversation: Conversation, manner: Manner, rng: Random, *, pauses: bool, leaving: float
    ) -> int:
        """Play one conversation up to its end or its first incomplete answer; return the number of complete answers."""
        messages = conversation.opening()
        for index, turn in enumerate(conversation.turns):
            if pauses:
                await asyncio.sleep(turn.pause_s)
            if self._stopping:
                return index
            messages.append(conversation.message(index))
            path, body = self._request(messages, turn.answer_tokens, manner)
            leaves_s = rng.uniform(0.0, LEAVE_WITHIN_S) if rng.random() < leaving else None
            seen = await self._ask(path, body, manner, leaves_s)
            self._seen(seen, manner)
            if seen.kind is not Kind.COMPLETE:
                return index
            messages.append({"role": "assistant", "content": seen.text})
        return len(conversation.turns)

    def _request(self, messages: list[dict[str, str]], tokens: int, manner: Manner) -> tuple[str, dict[str, Any]]:
        wanted = _LONG_ANSWER_TOKENS if manner.slow else tokens
        body: dict[str, Any] = {"model": self._model, "max_tokens": wanted, "ignore_eos": True}
        if manner.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if manner.text:
            return "/v1/completions", body | {"prompt": "\n".join(each["content"] for each in messages)}
        return "/v1/chat/completions", body | {"messages": messages}

    async def _ask(self, path: str, body: dict[str, Any], manner: Manner, leaves_s: float | None) -> Seen:
        began_s = asyncio.get_running_loop().time()
        client = self._slow if manner.slow else self._kept
        headers = {**dict(manner.claims), **({"connection": "close"} if manner.fresh else {})} or None
        dawdle_s = _DAWDLE_S if manner.slow else 0.0
        try:
            async with asyncio.timeout(leaves_s):
                return await observe(client, path, body, headers=headers, dawdle_s=dawdle_s)
        except TimeoutError:
            now_s = asyncio.get_running_loop().time()
            return Seen(began_s, Kind.LEFT, ended_s=now_s)
