"""Conversations by OpenAI's client, each answer judged: whole, failed, or silently short."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai

RETRIES = 2
TURNS = 12
PAUSE_S = 0.2
"""Time between an answer and the next question."""
_OPENING = "Please explain the importance of renewable energy for the global economy and the environment. " * 80
_QUESTION = "Which of the countries would become more important, and what would change for the others? "


@dataclass(slots=True)
class Ask:
    """One request, with the client's own retries. `error` is None after a whole answer.

    `silent`: a stream ended as if it were whole, without its last chunk.
    """

    streamed: bool
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    turn: int = 0
    server: str | None = None
    """The gateway that answered."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    retries: int = 0
    error: str | None = None
    silent: bool = False
    started: threading.Event = field(default_factory=threading.Event)
    """Set when a stream has its first chunk, or the request is over."""


class Caller:
    def __init__(self, url: str, model: str) -> None:
        self._model = model
        self._retries = 0
        counting = openai.DefaultHttpxClient(event_hooks={"request": [self._count]}, timeout=60)
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=RETRIES, http_client=counting)

    def _count(self, request: Any) -> None:
        self._retries = int(request.headers.get("x-stainless-retry-count", 0))

    def ask(self, messages: Sequence[dict[str, str]], ask: Ask, tokens: int) -> Ask:
        """Send one chat and read the answer to its end. A failure is recorded, not raised."""
        body: dict[str, Any] = {"model": self._model, "messages": messages, "max_tokens": tokens}
        try:
            if ask.streamed:
                self._stream(body, ask)
            else:
                self._whole(body, ask)
        except Exception as error:  # whichever: the caller sees it
            ask.error = f"{type(error).__name__}: {error}"
        ask.ended_s, ask.retries = time.monotonic(), self._retries
        ask.started.set()
        return ask

    def _whole(self, body: dict[str, Any], ask: Ask) -> None:
        raw = self._client.chat.completions.with_raw_response.create(**body)
        ask.server = raw.headers.get("x-gateway")
        answer = raw.parse()
        ask.text = answer.choices[0].message.content or ""
        _count_tokens(ask, answer.usage)

    def _stream(self, body: dict[str, Any], ask: Ask) -> None:
        stream = self._client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        ask.server = stream.response.headers.get("x-gateway")
        finished, parts = False, []
        for chunk in stream:
            ask.started.set()
            for choice in chunk.choices:
                parts.append(choice.delta.content or "")
                finished |= choice.finish_reason is not None
            _count_tokens(ask, chunk.usage)
        ask.text = "".join(parts)
        if not finished or not ask.prompt_tokens:
            ask.error, ask.silent = "the stream ended early as if it were whole", True

    def close(self) -> None:
        self._client.close()


def _count_tokens(ask: Ask, usage: Any) -> None:
    if usage is not None:
        ask.prompt_tokens = usage.prompt_tokens
        ask.cached_tokens = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0


class Chatting:
    """Threads that hold conversations without an end. Every second answer is streamed."""

    def __init__(self, url: str, model: str, threads: int) -> None:
        self.asks: list[Ask] = []
        """What has been asked and answered, in the order of the ends."""
        self._url, self._model = url, model
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._talk, args=(n,), daemon=True) for n in range(threads)]

    @contextmanager
    def running(self) -> Iterator[Chatting]:
        """Run the threads; they end after their present answer."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(70)

    def _talk(self, number: int) -> None:
        caller = Caller(self._url, self._model)
        for conversation in itertools.count():
            messages = [{"role": "system", "content": f"Conversation {number} {conversation}. {_OPENING}"}]
            for turn in range(TURNS):
                messages.append({"role": "user", "content": f"Question {turn}: {_QUESTION}"})
                ask = Ask(streamed=turn % 2 == number % 2, turn=turn)
                self.asks.append(caller.ask(messages, ask, 16))
                messages.append({"role": "assistant", "content": ask.text})
                if self._over.wait(PAUSE_S):
                    caller.close()
                    return

    def later(self, since_s: float) -> list[Ask]:
        """Return the asks that began at `since_s` or later and continue a conversation, in order of their beginning."""
        return sorted((ask for ask in self.asks if ask.began_s >= since_s and ask.turn), key=lambda ask: ask.began_s)


def cached_share(asks: Sequence[Ask]) -> float:
    """Return the part of the prompts' tokens that the workers had cached."""
    return sum(ask.cached_tokens for ask in asks) / max(1, sum(ask.prompt_tokens for ask in asks))


def in_the_background(url: str, model: str, asks: Sequence[Ask], tokens: int) -> list[threading.Thread]:
    """Send each as a request of its own, in threads that are returned."""

    def run(number: int, ask: Ask) -> None:
        caller = Caller(url, model)
        caller.ask([{"role": "user", "content": f"Tell a long story, number {number}."}], ask, tokens)
        caller.close()

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(asks)]
    for thread in threads:
        thread.start()
    return threads
