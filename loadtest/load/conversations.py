"""Play conversations against a URL. Each has its own task and sends its turns one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadtest.load.http import Client
from loadtest.load.seen import Seen, chat
from loadtest.workload.conversations import Conversation


def turn_body(model: str, conversation: Conversation, index: int, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Return the request of turn `index`. `messages` are the messages so far, including the question of this turn."""
    return {
        "model": model,
        "messages": messages,
        "max_tokens": conversation.turns[index].answer_tokens,
        "ignore_eos": True,
    }


async def play(
    base_url: str,
    model: str,
    conversations: Sequence[Conversation],
    progress: Callable[[Seen], None] = lambda timing: None,
    fields: Mapping[str, Any] | None = None,
) -> list[Seen]:
    """Start each conversation at its time; return one timing per request sent, conversation by conversation.

    `fields` are added to each request.
    """
    client = Client(base_url)
    begin_s = asyncio.get_running_loop().time()
    try:
        runs = [
            _play_one(client, model, conversation, begin_s, progress, fields or {}) for conversation in conversations
        ]
        return [timing for timings in await asyncio.gather(*runs) for timing in timings]
    finally:
        client.close()


async def _play_one(
    client: Client,
    model: str,
    conversation: Conversation,
    begin_s: float,
    progress: Callable[[Seen], None],
    fields: Mapping[str, Any],
) -> list[Seen]:
    loop = asyncio.get_running_loop()
    due_s = begin_s + conversation.start_s
    messages = conversation.opening()
    timings: list[Seen] = []
    for index, turn in enumerate(conversation.turns):
        due_s += turn.pause_s
        await asyncio.sleep(due_s - loop.time())
        messages.append(conversation.message(index))
        timing = await chat(client, {**turn_body(model, conversation, index, messages), **fields}, due_s)
        timings.append(timing)
        progress(timing)
        if timing.error is not None:
            break
        messages.append({"role": "assistant", "content": timing.text})
        due_s = loop.time()
    return timings
