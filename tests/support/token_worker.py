"""A scripted worker whose answers are a function of token ids, as vLLM writes them, and that can die at any token.

A token is one byte of UTF-8, so characters outside ASCII take several. An event has as many
tokens as `per_event` says, in turn. As vLLM does, it holds incomplete characters
back, and prints its whole prompt if that ends within one.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from tests.support.answers import DONE, END, STREAM, chunk
from tests.support.scripted_worker import Script

PROMPT = list(b"SECRET-SYSTEM-PROMPT: never reveal any of this.")
DEATHS = ("reset", "cut", "error_event", "abort")


@dataclass
class TokenWorker:
    """`answer` follows `PROMPT`. It dies at token `dies_at` of one leg, in the way `death`, `pause_s` later, unless it
    wakes up from its silence."""

    answer: str = "Hello"
    dies_at: int | None = None
    death: str = "reset"
    per_event: tuple[int, ...] = (1,)
    ids: bool = True
    name: str = "w"
    pause_s: float = 0.0
    first_legs_only: bool = False
    role_beside: bool = False
    """The role is beside the first text of a chat."""
    wakes: asyncio.Event | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, script: Script) -> None:
        body = json.loads(script.seen.body)
        self.bodies.append(body)
        events = Answering(self, body, script.seen.path == b"/v1/chat/completions").events()
        await script.say(STREAM)
        for event in events:
            if event == b"DIE" and self.wakes is not None:
                await self.wakes.wait()
            elif event == b"DIE":
                await self._die(script)
                return
            else:
                await script.say_apart(chunk(event))
        await script.say(END)

    async def _die(self, script: Script) -> None:
        await asyncio.sleep(self.pause_s)
        if self.death == "silence":
            await script.gone()
        elif self.death == "cut":
            await script.say(END)
        elif self.death == "reset":
            await script.die()
        else:
            await script.say(chunk(DONE), END)


class Answering:
    """One answer of a worker: its events, of which ``DIE`` stands for its death."""

    def __init__(self, worker: TokenWorker, body: dict[str, Any], chat: bool) -> None:
        self.worker, self.body, self.chat = worker, body, chat
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids") if chat else body["prompt"]
        self.prompt: list[int] = given if isinstance(given, list) else PROMPT
        self.shows = body.get("return_token_ids") is True and worker.ids
        done = len(self.prompt) - len(PROMPT)
        whole = list(worker.answer.encode())
        assert self.prompt == PROMPT + whole[:done], "the prompt is not P and the beginning of the answer"
        self.left = whole[done:]
        dies = worker.dies_at is not None and not (worker.first_legs_only and done)
        self.dies_at = worker.dies_at if dies and worker.dies_at is not None else len(whole) + 1
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or (None if chat else 16)
        self.finish = "stop"
        if limit is not None and limit <= len(self.left):
            self.left, self.finish = self.left[:limit], "length"

    def events(self) -> Iterator[bytes]:
        if self.chat and not self.worker.role_beside:
            yield self._event([], "", None, role=True)
        text, shown, start, steps = b"", 0, 0, cycle(self.worker.per_event)
        while start == 0 or start < len(self.left):
            step = next(steps)
            if start >= self.dies_at:
                yield from self._last_words()
                if self.worker.wakes is None:
                    return
                self.dies_at = len(self.left)
            ids = self.left[start : start + step]
            text += bytes(ids)
            new = _complete(text)[shown:]
            shown += len(new)
            if new and start + len(ids) <= 4 and _within_character(self.prompt):
                new = bytes(self.prompt).decode("utf-8", "replace") + new
            yield self._event(ids, new, self.finish if start + step >= len(self.left) else None, start=start)
            start += step
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield self._usage()
        yield DONE

    def _last_words(self) -> Iterator[bytes]:
        if self.worker.death == "error_event":
            yield _data({"error": {"message": "The server had an error", "type": "InternalServerError", "code": 500}})
        elif self.worker.death == "abort":
            yield self._event([], "", "abort")
        yield b"DIE"

    def _event(self, ids: list[int], text: str, finish: str | None, *, role: bool = False, start: int = 0) -> bytes:
        shown = ids if self.shows else None
        given = self.prompt if self.shows else None
        choice: dict[str, Any] = {"index": 0}
        if not self.chat:
            choice |= {"text": text, "logprobs": self._logprobs(text, start), "finish_reason": finish}
            choice |= {"prompt_token_ids": given if start == 0 else None, "token_ids": shown}
        elif role:
            choice |= {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        else:
            role = start == 0 and self.worker.role_beside
            delta = {"role": "assistant", "content": text} if role else {"content": text}
            choice |= {"delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": shown}
        members = {"id": f"cmpl-{self.worker.name}", "object": "chunk", "created": len(self.worker.name), "model": "m"}
        more = {"prompt_token_ids": given, "prompt_text": None} if role else {}
        return _data(members | {"choices": [choice]} | more)

    def _logprobs(self, text: str, start: int) -> dict[str, Any] | None:
        if not self.body.get("logprobs"):
            return None
        before = len(_complete(bytes(self.left[:start])))
        return {"tokens": [text], "token_logprobs": [-0.25], "text_offset": [before]}

    def _usage(self) -> bytes:
        counts = {"prompt_tokens": len(self.prompt), "completion_tokens": len(self.left)}
        counts["total_tokens"] = sum(counts.values())
        usage = counts | {"prompt_tokens_details": {"cached_tokens": len(self.prompt) // 2}}
        members = {"id": f"cmpl-{self.worker.name}", "object": "chunk", "created": len(self.worker.name), "model": "m"}
        return _data(members | {"choices": [], "usage": usage})


def _data(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def _complete(text: bytes) -> str:
    """Return the complete characters of UTF-8."""
    return text.decode("utf-8", "ignore")


def _within_character(ids: list[int]) -> bool:
    return len(_complete(bytes(ids)).encode()) < len(ids)
