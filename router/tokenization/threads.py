"""The threads that render and tokenise: one for small prompts, one for large ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from backends.vllm.unrenderable import Unrenderable

T = TypeVar("T")

SMALL_BYTES = 65_536
"""Work on this much text takes about 30 ms."""
MAX_WAITING_BYTES = 33_554_432
"""Bytes of text that may wait for one thread: half a minute of work. Further prompts go without token ids."""


class MemoryBudget(Protocol):
    """Memory that decoded bodies share with others; `router.requests.body_buffer_limit.BodyBufferLimit` is
    one."""

    def lend(self, size_bytes: int) -> bool: ...
    def give_back(self, size_bytes: int) -> None: ...


class TextUnavailable(Exception):
    """Not even the text of a prompt is available, for the given reason; the size of its body is used instead."""


@dataclass(slots=True, eq=False)
class TokenizerTask:
    """Work for a thread on `text_bytes` of text, with `memory_bytes` of memory. `running` after it has begun."""

    text_bytes: int
    memory_bytes: int = 0
    running: bool = False


class TokenizerThread:
    def __init__(self, name: str, max_bytes: int = MAX_WAITING_BYTES) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._turn = asyncio.Lock()
        self._max_bytes = max_bytes
        self.text_bytes = 0
        self.refused = 0

    async def run(self, task: TokenizerTask, work: Callable[[], T], memory: MemoryBudget | None) -> T:
        """Run `work` in the thread, in order of arrival. Cancelling ends the wait, but not work that has begun.

        Raises:
            Unrenderable: too much work waits.
            TextUnavailable: the memory that the work takes is not available.
        """
        if self.text_bytes and self.text_bytes + task.text_bytes > self._max_bytes:
            self.refused += 1
            raise Unrenderable("too many prompts wait to be tokenised")
        self.text_bytes += task.text_bytes
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:
            self.text_bytes -= task.text_bytes
            raise
        return await asyncio.shield(self._begin(task, work, memory))

    def _begin(self, task: TokenizerTask, work: Callable[[], T], memory: MemoryBudget | None) -> asyncio.Future[T]:
        if memory is not None and task.memory_bytes and not memory.lend(task.memory_bytes):
            self._leave(task)
            raise TextUnavailable("the memory for request bodies is too full for the decoded body")
        task.running = True
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)

        def ended(future: asyncio.Future[Any]) -> None:
            if memory is not None and task.memory_bytes:
                memory.give_back(task.memory_bytes)
            self._leave(task)
            if not future.cancelled():
                future.exception()  # Retrieved so that asyncio does not log an error without a reader.

        future.add_done_callback(ended)
        return future

    def _leave(self, task: TokenizerTask) -> None:
        self.text_bytes -= task.text_bytes
        self._turn.release()

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class TokenizerThreads:
    """Both threads. `memory` is the budget for decoded bodies."""

    def __init__(self) -> None:
        self._small = TokenizerThread("tokens-small")
        self._large = TokenizerThread("tokens-large")
        self._begun = 0
        self.memory: MemoryBudget | None = None

    async def run(self, task: TokenizerTask, work: Callable[[], T]) -> T:
        self._begun += 1
        thread = self._small if task.text_bytes <= SMALL_BYTES else self._large
        return await thread.run(task, work, self.memory)

    def close(self) -> None:
        self._small.close()
        self._large.close()

    def statistics(self) -> dict[str, int]:
        """Return the tasks given to the threads, and the tasks refused because too much work waited."""
        return {
            "off_loop": self._begun,
            "threads_refused": self._small.refused + self._large.refused,
        }
