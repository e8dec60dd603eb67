"""Token ids from a worker's own /tokenize, cached by request."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from backends.foreign_json import read_json
from backends.vllm.control import ProbeError, RefusedError, WorkerClient
from backends.vllm.conversation import conversation
from backends.vllm.messages_api import chat_of_messages
from backends.vllm.responses_api import chat_of_responses
from backends.vllm.unrenderable import Unrenderable
from backends.worker import Endpoint, parse_endpoint
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.parsed_body import COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from router.tokenization.byte_bounded_lru import ByteBoundedLru
from router.tokenization.request import api_body

TIMEOUT_S = 2.0
"""Time limit of one question. Placement by load alone is better than a later identity."""
PAUSE_S = 5.0
"""Time in which a worker that failed to answer is not asked again."""
MAX_TROUBLES = 1_000
"""Workers whose last failure is remembered."""
MAX_IN_FLIGHT = 16
"""Concurrent questions; further prompts go without ids."""
MAX_ANSWER_BYTES = 8 << 20
"""About a million ids."""
STEP_BYTES = 65_536
"""What is decoded of the ids in one step, of at most about 1 ms."""
BYTES_PER_ID = 9
"""JSON bytes per id, separator included: no vocabulary has more than seven digits. Each token stands for at least one
byte of the question."""
SLACK_BYTES = 65_536
"""Size of an answer beyond the ids of the question's text: the chat template's own text, and other fields."""

_PATH = "/tokenize"

_NOT_TOKENIZES = (
    "chat_template", "documents", "kv_transfer_params", "prompt_embeds", "reasoning_effort", "truncate_prompt_tokens",
)  # fmt: skip
"""Fields that /tokenize lacks."""


def tokenize_url(endpoint: Endpoint) -> str:
    """Return where a worker tokenises. A Host other than that of the address is the fragment."""
    host = f"#{endpoint.host_header}" if endpoint.host_header else ""
    return f"{endpoint.url}{_PATH}{host}"


class _TokenizeResponse(msgspec.Struct):
    tokens: msgspec.Raw


class WorkerTokenizer:
    """Ask workers for ids and cache the answers, up to `max_bytes`."""

    def __init__(
        self,
        max_bytes: int,
        clock: Callable[[], float],
        client: WorkerClient | None = None,
    ) -> None:
        self._known: ByteBoundedLru[int, array[int]] = ByteBoundedLru(max_bytes)
        self._clock = clock
        self._client = client or WorkerClient()
        self._paused: dict[str, float] = {}
        self._troubles: dict[str, str] = {}
        self._in_flight = 0
        self._asked = 0
        self._failed = 0

    def known(self, key: int) -> array[int] | None:
        return self._known.get(key)

    def asks(self, urls: Sequence[str]) -> bool:
        """Return whether `ask` would ask one of `urls` now."""
        now_s = self._clock()
        return self._in_flight < MAX_IN_FLIGHT and any(self._paused.get(url, now_s) <= now_s for url in urls)

    async def ask(
        self, key: int, urls: Sequence[str], tokenize_question: bytes, most_tokens: int | None = None
    ) -> array[int] | None:
        """Return the ids from the first of `urls` that is not paused.

        None if every URL is paused, the worker does not answer, or the answer is longer than `most_tokens` ids can be.
        No worker computes such a prompt.
        """
        now_s = self._clock()
        self._paused = {url: until_s for url, until_s in self._paused.items() if until_s > now_s}
        url = next((url for url in urls if url not in self._paused), None)
        if url is None or self._in_flight >= MAX_IN_FLIGHT:
            return None
        self._in_flight += 1
        self._asked += 1
        try:
            ids = await self._post(url, tokenize_question, most_tokens)
        except (ProbeError, msgspec.DecodeError, ValueError, OverflowError) as error:
            self._failed += 1
            self._paused[url] = self._clock() + PAUSE_S
            if len(self._troubles) >= MAX_TROUBLES:
                self._troubles.clear()
            self._troubles[url] = _trouble(error)
            return None
        finally:
            self._in_flight -= 1
        self._troubles.pop(url, None)
        if ids is not None:
            self._known.put(key, ids, 4 * len(ids))
        return ids

    def trouble(self, urls: Sequence[str]) -> str | None:
        """Return the failure of the first of `urls`, if the last question to each of them failed."""
        found = [self._troubles.get(url) for url in urls]
        return found[0] if found and None not in found else None

    async def aclose(self) -> None:
        await self._client.aclose()

    def statistics(self) -> dict[str, int]:
        return {"asked": self._asked, "failed": self._failed, **self._known.statistics()}

    async def _post(self, url: str, tokenize_question: bytes, most_tokens: int | None) -> array[int] | None:
        address, _, host = url.partition("#")
        endpoint = replace(parse_endpoint(address.removesuffix(_PATH)), host_header=host)
        limit_bytes = answer_limit_bytes(tokenize_question)
        try:
            answer = await self._client.post_json(
                endpoint, _PATH, tokenize_question, timeout_s=TIMEOUT_S, max_bytes=limit_bytes
            )
        except RefusedError as refusal:
            if refusal.status in (400, 422):
                return None
            raise
        if most_tokens is not None and len(answer) > BYTES_PER_ID * most_tokens + SLACK_BYTES:
            return None
        ids = array("I")
        for piece in id_pieces(bytes(read_json(answer, _TokenizeResponse).tokens)):
            ids.extend(read_json(piece, list[int]))
            await asyncio.sleep(0)
        return ids


def id_pieces(text: bytes) -> Iterator[bytes]:
    """Yield a JSON list of numbers as several lists. Pieces of another value are not lists of numbers."""
    start = 0
    while len(text) - start > STEP_BYTES and (comma := text.find(b",", start + STEP_BYTES)) >= 0:
        yield (b"[" if start else b"") + text[start:comma] + b"]"
        start = comma + 1
    yield (b"[" if start else b"") + text[start:]


def answer_limit_bytes(tokenize_question: bytes) -> int:
    return min(MAX_ANSWER_BYTES, BYTES_PER_ID * len(tokenize_question) + SLACK_BYTES)


def _trouble(error: Exception) -> str:
    if isinstance(error, ProbeError):
        return error.reason
    return f"{_PATH} answered something else than token ids"


class _AssumedHabits:
    @property
    def merges_late_system(self) -> bool:
        raise Unrenderable("system messages in mid-conversation need the model's chat template")

    @property
    def disabled_effort(self) -> str:
        raise Unrenderable("disabled thinking needs the model's chat template")


def tokenize_question(path: str, fields: BodyFields, model: str | None) -> bytes:
    """Return the body for /tokenize that gives a request's ids.

    /tokenize lacks `documents` and `reasoning_effort`, and the worker would fetch multimodal content twice.

    Raises:
        Unrenderable: for the same reasons as local rendering; or that path cannot know the ids.
    """
    prompt_request = _chat(path, fields) if path != COMPLETIONS_PATH else {"prompt": fields.prompt}
    lacking = any(getattr(fields, name) is not None for name in _NOT_TOKENIZES) or bool(fields.mm_processor_kwargs)
    if lacking or "reasoning_effort" in prompt_request or fields.truncation != "disabled":
        raise Unrenderable("a worker's /tokenize does not know some of the request's fields")
    if fields.add_special_tokens is not None and path not in (MESSAGES_PATH, RESPONSES_PATH):
        prompt_request["add_special_tokens"] = fields.add_special_tokens
    return msgspec.json.encode(prompt_request if model is None else {"model": model, **prompt_request})


def _chat(path: str, fields: BodyFields) -> dict[str, object]:
    body = api_body(path, fields)
    if path == MESSAGES_PATH:
        body = chat_of_messages(body, _AssumedHabits())
    elif path == RESPONSES_PATH:
        body = {**chat_of_responses(body), "add_special_tokens": True}
        if any("tool_calls" in message for message in body["messages"]):
            raise Unrenderable("a worker's /tokenize shows tool calls in another way than its /v1/responses")
    conversation(body.get("messages"), parts=False)
    return body
