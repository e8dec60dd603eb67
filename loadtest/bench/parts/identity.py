"""Measure the time of an identity: ``python -m loadtest.bench.parts.identity`` prints microseconds, p50 and p99.

The prompts are source files of Python's standard library, tokenised with the embedded worker's model folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from backends.simulated.settings import shipped_model_dir
from loadtest.report.summary import percentile
from router.config.model import Config
from router.residency.prompt import Prompt
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH
from router.tokenization.prompt_identifier import PromptIdentifier

BLOCK_TOKENS = 16
RUNS = 200
CHARS_PER_TOKEN = 4.45

Messages = list[dict[str, object]]


def sources() -> str:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "".join(
        (folder / name).read_text() for name in ("argparse.py", "typing.py", "ast.py", "inspect.py", "doctest.py")
    )


def conversation(text: str, tokens: int, turn_chars: int) -> Messages:
    """Return messages with about `tokens` tokens in total."""
    starts = range(0, int(tokens * CHARS_PER_TOKEN), turn_chars)
    return [
        {"role": ("user", "assistant")[index % 2], "content": text[start : start + turn_chars]}
        for index, start in enumerate(starts)
    ]


def body(messages: Messages, path: str) -> bytes:
    """Return the conversation as a body for the API at `path`, with content blocks and items as agents send them."""
    kinds = {"user": "input_text", "assistant": "output_text"}
    if path == CHAT_PATH:
        fields: dict[str, object] = {"messages": [{"role": "system", "content": "You review code."}, *messages]}
    elif path == MESSAGES_PATH:
        blocks = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        fields = {"max_tokens": 9, "system": "You review code.", "messages": blocks}
    else:
        items = [{**one, "content": [{"type": kinds[str(one["role"])], "text": one["content"]}]} for one in messages]
        fields = {"instructions": "You review code.", "input": [{"type": "message", **item} for item in items]}
    return json.dumps({"model": "m", **fields}).encode()


async def settle(identity: PromptIdentifier, data: bytes, path: str) -> int:
    """Identify a body, which may take a thread, and return its number of tokens."""
    prompt = await identity.identify(path, parse(path, data), None)
    assert prompt is not None and prompt.exact
    prompt.chain(BLOCK_TOKENS)
    return prompt.tokens


def report(identity: PromptIdentifier, name: str, bodies: Sequence[bytes], path: str) -> None:
    """Do the gateway's work on the event loop for each body, and print the time."""
    taken_us = []
    for data in bodies:
        started = time.perf_counter()
        prompt = identity.identify_now(path, parse(path, data), None)
        if isinstance(prompt, Prompt):
            prompt.chain(BLOCK_TOKENS)
        taken_us.append((time.perf_counter() - started) * 1e6)
    print(f"{name:62} p50 {percentile(taken_us, 0.5):8.1f} us   p99 {percentile(taken_us, 0.99):8.1f} us")


async def main() -> None:
    text = sources()
    identity = PromptIdentifier(Config(model_dir=str(shipped_model_dir())))
    for path, tokens in ((CHAT_PATH, 2_000), (CHAT_PATH, 32_000), (MESSAGES_PATH, 32_000), (RESPONSES_PATH, 32_000)):
        messages = conversation(text, tokens, 3_200)
        known = body(messages, path)
        label = f"{await settle(identity, known, path)} tokens, {path}"
        turns = []
        for number in range(RUNS):
            turn: Messages = [
                {"role": "assistant", "content": text[-50_000 + 37 * number :][:300]},
                {"role": "user", "content": text[-90_000 + 41 * number :][:560]},
            ]
            turns.append(body([*messages, *turn], path))
        report(identity, f"next turn, about 200 new tokens ({label})", turns, path)
        report(identity, f"known request ({label})", [known] * RUNS, path)
    await identity.aclose()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
