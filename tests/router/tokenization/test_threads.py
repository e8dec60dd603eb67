"""Small prompts do not wait for large ones, waiting work is bounded, and memory is charged while it is used."""

import asyncio
from threading import Event

import pytest

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.threads import SMALL_BYTES, TextUnavailable, TokenizerTask, TokenizerThread, TokenizerThreads


class Purse:
    """A memory budget of `left` bytes."""

    def __init__(self, size_bytes: int) -> None:
        self.left = size_bytes

    def lend(self, size_bytes: int) -> bool:
        if size_bytes > self.left:
            return False
        self.left -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.left += size_bytes


@pytest.fixture
def gate():
    event = Event()
    yield event
    event.set()


async def begun(task: TokenizerTask) -> None:
    for _ in range(10):
        if not task.running:
            await asyncio.sleep(0)
    assert task.running


async def test_a_small_prompt_overtakes_large_ones(gate: Event) -> None:
    threads = TokenizerThreads()
    large = [asyncio.create_task(threads.run(TokenizerTask(SMALL_BYTES + 1), gate.wait)) for _ in range(3)]
    assert await threads.run(TokenizerTask(SMALL_BYTES), lambda: "small") == "small"
    assert not any(task.done() for task in large)
    gate.set()
    assert await asyncio.gather(*large) == [True] * 3
    assert threads.statistics() == {"off_loop": 4, "threads_refused": 0}
    threads.close()


async def test_waiting_text_is_bounded(gate: Event) -> None:
    thread = TokenizerThread("test", max_bytes=100)
    first = asyncio.create_task(thread.run(TokenizerTask(1_000), gate.wait, None))
    await asyncio.sleep(0)
    with pytest.raises(Unrenderable, match="too many prompts wait"):
        await thread.run(TokenizerTask(1), bool, None)
    assert (thread.text_bytes, thread.refused) == (1_000, 1)
    gate.set()
    await first
    assert await thread.run(TokenizerTask(1), bool, None) is False
    thread.close()


async def test_memory_is_lent_while_the_work_runs(gate: Event) -> None:
    thread, purse = TokenizerThread("test"), Purse(10)
    running, waiting = TokenizerTask(1, 8), TokenizerTask(1, 8)
    first = asyncio.create_task(thread.run(running, gate.wait, purse))
    second = asyncio.create_task(thread.run(waiting, gate.wait, purse))
    await begun(running)
    assert purse.left == 2 and not waiting.running
    first.cancel()
    await asyncio.sleep(0)
    assert purse.left == 2  # the thread is still working
    gate.set()
    assert await second
    assert purse.left == 10
    with pytest.raises(TextUnavailable):
        await thread.run(TokenizerTask(1, 11), bool, purse)
    assert await thread.run(TokenizerTask(1, 10), bool, purse) is False
    assert (purse.left, thread.text_bytes) == (10, 0)
    thread.close()


async def test_waiting_work_can_be_cancelled(gate: Event) -> None:
    thread = TokenizerThread("test")
    done: list[int] = []
    first = asyncio.create_task(thread.run(TokenizerTask(1), gate.wait, None))
    await asyncio.sleep(0)
    second = asyncio.create_task(thread.run(TokenizerTask(1), lambda: done.append(2), None))
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    await first
    await thread.run(TokenizerTask(1), lambda: done.append(3), None)
    assert done == [3] and thread.text_bytes == 0
    thread.close()


async def test_failures_reach_the_waiting_caller() -> None:
    thread = TokenizerThread("test")
    with pytest.raises(ZeroDivisionError):
        await thread.run(TokenizerTask(1), lambda: 1 // 0, None)
    assert thread.text_bytes == 0
    thread.close()
