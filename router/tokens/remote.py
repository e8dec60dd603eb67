"""Token ids from a worker's own /tokenize, remembered by what was asked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import httpx
import msgspec

from backends.vllm.conversation import conversation
from backends.vllm.messages_api import chat_of_messages
from backends.vllm.responses_api import chat_of_responses
from backends.vllm.unrenderable import Unrenderable
from router.tokens.fields import BodyFields
from router.tokens.intake import COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from router.tokens.lru import BoundedMap
from router.tokens.request import api_body

TIMEOUT_S = 2.0
"""One question's limit: past it, load alone is a better guide than a late identity."""
PAUSE_S = 5.0
"""A worker that failed to answer is not asked again for so long."""
MAX_TROUBLES = 1_000
"""Workers whose last failure is remembered."""
MAX_IN_FLIGHT = 16
"""Questions at once; further prompts go without ids."""


_NOT_TOKENIZES = (
    "chat_template", "documents", "kv_transfer_params", "prompt_embeds", "reasoning_effort", "truncate_prompt_tokens",
)  # fmt: skip
"""Fields that /tokenize lacks."""


class _Answer(msgspec.Struct):
    tokens: list[int]


class WorkerTokenizer:
    """Asks workers for ids. What it learned is kept up to `max_bytes`."""

    def __init__(self, max_bytes: int, clock: Callable[[], float], client: httpx.AsyncClient | None = None) -> None:
        self._known: BoundedMap[int, array[int]] = BoundedMap(max_bytes)
        self._clock = clock
        self._client = client
        self._paused: dict[str, float] = {}
        self._troubles: dict[str, str] = {}
        self._in_flight = 0
        self._asked = 0
        self._failed = 0

    def known(self, key: int) -> array[int] | None:
        """Ids that were asked for before under `key`."""
        return self._known.get(key)

    async def ask(self, key: int, urls: Sequence[str], question: bytes) -> array[int] | None:
        """Ids from the first of `urls` that is not paused; None when there is none, or it does not answer."""
        now_s = self._clock()
        self._paused = {url: until_s for url, until_s in self._paused.items() if until_s > now_s}
        url = next((url for url in urls if url not in self._paused), None)
        if url is None or self._in_flight >= MAX_IN_FLIGHT:
            return None
        self._in_flight += 1
        self._asked += 1
        try:
            ids = await self._post(url, question)
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, ValueError, OverflowError) as error:
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
        """How the first of `urls` failed to answer, if the last question to each of them failed."""
        found = [self._troubles.get(url) for url in urls]
        return found[0] if found and None not in found else None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    def statistics(self) -> dict[str, int]:
        """Questions asked and failed, and what is remembered."""
        return {"asked": self._asked, "failed": self._failed, **self._known.statistics()}

    async def _post(self, url: str, question: bytes) -> array[int] | None:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)
        response = await self._client.post(url, content=question, headers={"content-type": "application/json"})
        if response.status_code in (400, 422):
            return None
        response.raise_for_status()
        return array("I", msgspec.json.decode(response.content, type=_Answer).tokens)


def _trouble(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"answered {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException):
        return f"gave no answer within {TIMEOUT_S:g} s"
    if isinstance(error, httpx.TransportError):
        return "cannot be reached"
    return "answered something else than token ids"


class _UnknownTemplate:
    """The habits of a template that only workers have."""

    @property
    def merges_late_system(self) -> bool:
        raise Unrenderable("system messages in mid-conversation need the model's chat template")

    @property
    def disabled_effort(self) -> str:
        raise Unrenderable("disabled thinking needs the model's chat template")


def question(path: str, fields: BodyFields, model: str | None) -> bytes | None:
    """The body for /tokenize that gives a request's ids; None where that path cannot know them.

    /tokenize lacks `documents` and `reasoning_effort`, and multimodal content would be fetched by the worker twice.

    Raises:
        Unrenderable: as rendering here does.
    """
    asked = _chat(path, fields) if path != COMPLETIONS_PATH else {"prompt": fields.prompt}
    lacking = any(getattr(fields, name) is not None for name in _NOT_TOKENIZES) or bool(fields.mm_processor_kwargs)
    if lacking or "reasoning_effort" in asked or fields.truncation != "disabled":
        return None
    if fields.add_special_tokens is not None and path not in (MESSAGES_PATH, RESPONSES_PATH):
        asked["add_special_tokens"] = fields.add_special_tokens
    return msgspec.json.encode(asked if model is None else {"model": model, **asked})


def _chat(path: str, fields: BodyFields) -> dict[str, object]:
    body = api_body(path, fields)
    if path == MESSAGES_PATH:
        body = chat_of_messages(body, _UnknownTemplate())
    elif path == RESPONSES_PATH:
        body = {**chat_of_responses(body), "add_special_tokens": True}
        if any("tool_calls" in message for message in body["messages"]):
            raise Unrenderable("a worker's /tokenize shows tool calls in another way than its /v1/responses")
    conversation(body.get("messages"), parts=False)
    return body
