"""Measure the time of an identity: ``python -m loadtest.bench.parts.identity`` prints microseconds, p50 and p99.

The prompts are source files of Python's standard library, tokenised with the embedded worker's model folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sysconfig
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import backends.simulated
from router.config.model import Config
from router.residency.prompt import Prompt
from router.tokenization.body.intake import CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH, parse
from router.tokenization.prompt_identifier import PromptIdentifier

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
BLOCK_TOKENS = 16
RUNS = 200


def sources() -> str:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "".join(
        (folder / name).read_text() for name in ("argparse.py", "typing.py", "ast.py", "inspect.py", "doctest.py")
    )


def conversation(text: str, tokens: int, turn_chars: int) -> list[dict[str, str]]:
    """Return messages with about `tokens` tokens in total."""
    chars = int(tokens * 4.45)
    pieces = [text[start : start + turn_chars] for start in range(0, chars, turn_chars)]
    return [
        {"role": "system", "content": "You review code."},
        *({"role": ("user", "assistant")[index % 2], "content": piece} for index, piece in enumerate(pieces)),
    ]


def body(messages: list[dict[str, str]], path: str = CHAT_PATH) -> bytes:
    """Return the conversation as a body for the API at `path`, with content blocks and items as agents send them."""
    if path == MESSAGES_PATH:
        return json.dumps({"model": "m", "max_tokens": 9, "system": "S", "messages": as_blocks(messages[1:])}).encode()
    if path == RESPONSES_PATH:
        return json.dumps({"model": "m", "instructions": "S", "input": as_items(messages[1:])}).encode()
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


def as_blocks(messages: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in messages]


def as_items(messages: list[dict[str, str]]) -> list[dict[str, Any]]:
    kinds = {"user": "input_text", "assistant": "output_text"}
    parts = [[{"type": kinds[m["role"]], "text": m["content"]}] for m in messages]
    return [
        {"type": "message", "role": m["role"], "content": content} for m, content in zip(messages, parts, strict=True)
    ]


def place(identity: PromptIdentifier, data: bytes, path: str = CHAT_PATH) -> Prompt | None:
    """Do the gateway's work on the event loop."""
    prompt = identity.identify_now(path, parse(path, data), None)
    if prompt is not None:
        prompt.chain(BLOCK_TOKENS)
    return prompt


def place_one(identity: PromptIdentifier, bodies: Sequence[bytes], number: int, *, path: str = CHAT_PATH) -> None:
    place(identity, bodies[number], path)


async def settled(identity: PromptIdentifier, data: bytes, path: str = CHAT_PATH) -> Prompt:
    prompt = await identity.identify(path, parse(path, data), None)
    assert prompt is not None and prompt.exact
    prompt.chain(BLOCK_TOKENS)
    return prompt


def report(name: str, work: Callable[[int], Any]) -> None:
    taken = []
    for run in range(RUNS):
        started = time.perf_counter()
        work(run)
        taken.append((time.perf_counter() - started) * 1e6)
    taken.sort()
    print(f"{name:62} p50 {taken[len(taken) // 2]:8.1f} us   p99 {taken[int(len(taken) * 0.99)]:8.1f} us")


async def main() -> None:
    text = sources()
    identity = PromptIdentifier(Config(model_dir=str(MODEL_DIR)))
    for tokens, turn_chars in ((2_000, 1_600), (8_000, 3_200), (32_000, 3_200)):
        messages = conversation(text, tokens, turn_chars)
        prompt = await settled(identity, body(messages))
        answers = [{"role": "assistant", "content": text[-50_000 + 37 * n :][:300]} for n in range(RUNS)]
        questions = [{"role": "user", "content": text[-90_000 + 41 * n :][:560]} for n in range(RUNS)]
        turns = [body([*messages, answers[n], questions[n]]) for n in range(RUNS)]
        label = f"{prompt.tokens} tokens, {len(messages)} messages"
        report(f"next turn, about 200 new tokens ({label})", partial(place_one, identity, turns))
        known = body(messages)
        report(f"known request ({label})", partial(place_one, identity, [known] * RUNS))
    for path in (CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH):
        messages = conversation(text[9_000:], 30_000, 3_200)
        prompt = await settled(identity, body(messages, path), path)
        answers = [{"role": "assistant", "content": text[-50_000 + 37 * n :][:300]} for n in range(RUNS)]
        questions = [{"role": "user", "content": text[-90_000 + 41 * n :][:560]} for n in range(RUNS)]
        turns = [body([*messages, answers[n], questions[n]], path) for n in range(RUNS)]
        report(f"next turn of {prompt.tokens} tokens, {path}", partial(place_one, identity, turns, path=path))
    fresh = [body(conversation(text[3_000 * n :], 2_000, 1_600)) for n in range(60)]
    started = time.perf_counter()
    for data in fresh:
        await settled(identity, data)
    print(
        f"{'new 2,000-token chat, tokenised in a thread':62} mean {(time.perf_counter() - started) / 60 * 1e6:6.0f} us"
    )
    print(json.dumps(identity.statistics(), indent=1))
    await identity.aclose()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
