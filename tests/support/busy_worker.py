"""A gateway with classes whose only worker computes a long prompt."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from router.residency.prompt import Prompt, PromptSource
from router.security.keys import new_key
from tests.support.answers import answer_stream
from tests.support.raw_client import bearer, key_line, post
from tests.support.waiting import eventually

CLASSES = {"chat": {"share": 1.0}, "batch": {"share": 0.0}, "hasty": {"max_wait_s": 1.0}}
RED, BLUE = new_key(), new_key()
AUTH = {"api_keys": [key_line("red", RED), key_line("blue", BLUE)]}
LONG = 8_000
"""Half a second of work, as long as no speed is learned."""


class Worker:
    """Sends the `start` of each answer at once, and answers its oldest request when it is allowed to."""

    def __init__(self, start: bytes = b"") -> None:
        self.start = start
        self.waiting: list[asyncio.Event] = []
        self.scripts: list[Any] = []

    async def __call__(self, script: Any) -> None:
        await script.say(self.start)
        go = asyncio.Event()
        self.waiting.append(go)
        self.scripts.append(script)
        allowed, gone = asyncio.create_task(go.wait()), asyncio.create_task(script.gone())
        await asyncio.wait((allowed, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (allowed, gone):
            task.cancel()
        await asyncio.gather(allowed, gone, return_exceptions=True)
        if go.is_set():
            await answer_stream(script)
        else:
            self.waiting.remove(go)

    async def answer(self) -> None:
        await eventually(lambda: self.waiting)
        self.waiting.pop(0).set()


def unlike_prompts(tokens: int) -> Callable[[], Prompt]:
    """Return a stand-in for the identity of prompts, none of which begins like another one."""
    numbers = itertools.count()

    def prompt() -> Prompt:
        number = next(numbers)
        return Prompt(
            tokens, PromptSource.IDS, lambda block: [hash((number, i)) & (2**64 - 1) for i in range(tokens // block)]
        )

    return prompt


async def busy(rig: Any, first: bytes = b"", worker: Worker | None = None, **options: Any) -> Any:
    """Return a gateway whose worker computes the request `made.first`, sent with the header lines `first`."""
    worker = worker or Worker()
    made = await rig(worker, **{"classes": CLASSES, "auth": {"allow": ["priority"]}} | options)
    made.worker, made.identity.prompt = worker, unlike_prompts(LONG)
    extra = bearer(RED) if "api_keys" in options.get("auth", {}) else b""
    made.first = await made.send(post(extra=first + extra))
    await eventually(lambda: worker.waiting)
    return made


def named(name: bytes) -> bytes:
    return b"X-Request-Class: %b\r\n" % name


def waits(made: Any) -> dict[str, int]:
    return {name: one["waiting"] for name, one in made.gateway.statistics()["classes"]["waiting"]["m"].items()}


async def enters(made: Any, name: str, extra: bytes = b"") -> Any:
    before = waits(made)[name]
    client = await made.send(post(extra=named(name.encode()) + extra))
    await eventually(lambda: waits(made)[name] == before + 1)
    return client
