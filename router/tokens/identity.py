"""The identity of a request's prompt, from the best source at hand.

In this order: ids in the body itself; a local model folder (configured, or found by what the workers say); a worker's
/tokenize; the text alone. `identify_now` answers what costs little, `identify` everything, and neither ever raises.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from backends.vllm.control import WorkerClient
from backends.vllm.unrenderable import Unrenderable
from router.config.budgets import PROMPTS
from router.config.model import Config
from router.prefix.prompt import Prompt, PromptSource
from router.secure.workers import WorkerTls
from router.tokens.hashing import CacheKeys
from router.tokens.intake import COMPLETIONS_PATH, PROMPT_PATHS, ParsedBody
from router.tokens.local import LocalModel
from router.tokens.reasons import Reasons
from router.tokens.remote import WorkerTokenizer, question
from router.tokens.rendering import MAX_TEXT_BYTES, CutText, PromptMemory, Rendered, cut_text
from router.tokens.request import (
    Truncation,
    adds_special_tokens,
    completion_prompts,
    render_chat,
    request_key,
    reused_ids,
    truncation,
    turns,
)
from router.tokens.sources import ModelSources, Source
from router.tokens.text import TextPrompt, TokenLengths, canonical_text

T = TypeVar("T")

INLINE_NEW_BYTES = 4_096
"""Text tokenised on the event loop: about 0.6 ms. A hop to a thread and back costs about 0.1 ms."""
INLINE_BODY_BYTES = 1_000_000
"""Bodies rendered on the event loop: about 1 ms."""
LOADING_WAIT_S = 5.0
"""How long a prompt waits for tokenizer files that are being read."""


class Later(Protocol):
    """The rest of the way, for a coroutine."""

    def __call__(self) -> Awaitable[Answer]:
        """Go on."""
        ...


Answer: TypeAlias = Prompt | Later | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request on its way; `key` is shared by equal requests only, `truncation` is what it says about that."""

    path: str
    parsed: ParsedBody
    adapter: str | None
    source: Source
    keys: CacheKeys
    key: int
    truncation: Truncation | None

    @property
    def framed(self) -> bool:
        """Whether the tokenizer's own first tokens are asked for."""
        return adds_special_tokens(self.path, self.parsed.fields)


class Identity:
    """All sources together, with the memory they share (`residency.memo_bytes` of the configuration)."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        worker_tls: WorkerTls | None = None,
    ) -> None:
        budget = PROMPTS.of(config.residency)
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokens")
        self._sources = ModelSources(config, self._threads, environ)
        self._memory = PromptMemory(budget - budget // 8)
        tls = worker_tls or WorkerTls(config.worker_tls)
        self._remote = WorkerTokenizer(budget // 8, clock, WorkerClient(tls=tls.context_for))
        self._lengths = TokenLengths()
        self._reasons = Reasons()
        self._answers = dict.fromkeys(PromptSource, 0)
        self._off_loop = 0

    # asking

    def identify_now(self, path: str, parsed: ParsedBody, adapter: str | None) -> Prompt | None:
        """The prompt, if that takes well under a millisecond; None where `identify` has to be awaited.

        `adapter` is the LoRA adapter that the request's model names, if it names one. Never raises.
        """
        try:
            answer = self._begin(path, parsed, adapter)
        except Exception as error:  # what a body or a template can do wrong has no end; its text remains
            prompt = self._by_text(path, parsed, adapter, error)
            parsed.pending = _no_prompt if prompt is None else None
            return prompt
        if answer is None or isinstance(answer, Prompt):
            return self._counted(answer)
        parsed.pending = answer
        return None

    async def identify(self, path: str, parsed: ParsedBody, adapter: str | None) -> Prompt | None:
        """The prompt by whatever it takes; None where the path or the body has none. Never raises."""
        try:
            pending, parsed.pending = parsed.pending, None
            answer: Answer = pending if callable(pending) else self._begin(path, parsed, adapter)
            while answer is not None and not isinstance(answer, Prompt):
                answer = await answer()
            return self._counted(answer)
        except Exception as error:
            return self._by_text(path, parsed, adapter, error)

    # learning

    def learn(
        self,
        model: str,
        root: str | None,
        tokenize_url: str | None,
        parent: str | None = None,
        context_tokens: int | None = None,
    ) -> None:
        """A worker serves `model` from `root`, and tokenises at `tokenize_url`; an adapter names its base `parent`.

        `context_tokens` is how much it serves of the model's context window.
        """
        self._sources.learn(model, root, tokenize_url, parent, context_tokens)

    def observe_usage(self, model: str | None, prompt: Prompt, prompt_tokens: int) -> None:
        """A worker reported how long `prompt` was: that teaches the length of a token in text."""
        if isinstance(prompt, TextPrompt) and not prompt.multiple:
            self._lengths.observe(model or "", prompt.text_bytes, prompt_tokens)

    def describe(self, model: str) -> str:
        """Where ids of `model`'s prompts come from, for people."""
        return self._sources.describe(model, self._remote.trouble)

    async def aclose(self) -> None:
        """Close connections to workers and stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._remote.aclose()

    def statistics(self) -> dict[str, object]:
        """Prompts by source, reasons for text, and what the memories hold."""
        return {
            "prompts": {source.value: count for source, count in self._answers.items()},
            "off_loop": self._off_loop,
            "text_reasons": self._reasons.statistics(),
            "bytes_per_token": self._lengths.statistics(),
            "workers": self._remote.statistics(),
            **self._memory.statistics(),
            **self._sources.statistics(),
        }

    # the way to an answer

    def _begin(self, path: str, parsed: ParsedBody, adapter: str | None) -> Answer:
        fields = parsed.fields
        if path not in PROMPT_PATHS or not turns(path, fields):
            return None
        source = self._sources.of(parsed.model, adapter)
        keys = CacheKeys.of(adapter, parsed.cache_salt)
        key = request_key(path, parsed, source.local.seed if source.local is not None else 0, keys)
        shortened = truncation(path, fields, source.context_tokens)
        answered = self._memory.answered(key)
        if answered is not None and (shortened is None or answered.tokens <= shortened.tokens):
            return answered
        return self._answer(_Asked(path, parsed, adapter, source, keys, key, shortened))

    def _answer(self, asked: _Asked) -> Answer:
        """From ids in the body, or else from the model's source."""
        fields, source = asked.parsed.fields, asked.source
        texts: list[str] = []
        if asked.path != COMPLETIONS_PATH:
            reused = reused_ids(asked.path, fields)
            if reused is not None:
                return self._memory.of_ids([reused], asked.keys, PromptSource.IDS)
        else:
            texts, ids = completion_prompts(fields)
            if ids:
                shortened = [_shortened(asked, prompt, 0) for prompt in ids]
                return self._memory.of_ids(shortened, asked.keys, PromptSource.IDS, stream=asked.parsed.stream)
        if source.local is not None:
            return self._locally(asked, source.local, texts)
        if source.loading is not None:
            return partial(self._when_loaded, asked)
        if source.urls and len(texts) <= 1:
            return partial(self._from_worker, asked)
        raise Unrenderable(source.why)

    def _locally(self, asked: _Asked, local: LocalModel, texts: list[str]) -> Answer:
        if len(texts) > 1:
            return partial(self._several, asked, local, texts)
        if texts:
            return self._by_units(asked, cut_text(local, texts[0], framed=asked.framed))
        brought = asked.parsed.fields.chat_template is not None
        if brought and not asked.source.trusts_templates:
            raise Unrenderable("the request brings a chat template, and these are not trusted")
        if brought or asked.parsed.size_bytes > INLINE_BODY_BYTES:
            return partial(self._beside, asked, local)
        return self._by_units(asked, _rendered(asked, local))

    async def _beside(self, asked: _Asked, local: LocalModel) -> Answer:
        """Render a large body, or with a strange template, in a thread: the loop comes to serve others meanwhile."""
        return self._by_units(asked, await self._in_thread(partial(_rendered, asked, local)))

    def _by_units(self, asked: _Asked, text: CutText) -> Answer:
        """From a text in units: tokenised here if little of it is new, else in a thread."""
        most = asked.truncation.tokens if asked.truncation is not None else None
        rendered = self._memory.look_up(asked.key, asked.keys, text, most)
        if rendered.new_bytes > INLINE_NEW_BYTES:
            return partial(self._encoded, asked, rendered)
        return self._finished(asked, rendered, rendered.encode())

    async def _encoded(self, asked: _Asked, rendered: Rendered) -> Answer:
        return self._finished(asked, rendered, await self._in_thread(rendered.encode))

    def _finished(self, asked: _Asked, rendered: Rendered, ids: list[array[int]] | array[int]) -> Answer:
        prompt = self._memory.finish(rendered, ids)
        return prompt if prompt is not None else partial(self._truncated, asked, rendered.text)

    async def _truncated(self, asked: _Asked, text: CutText) -> Answer:
        """A prompt that is a part of its text: tokenised whole, since its blocks may start anywhere."""
        ids = await self._in_thread(partial(_encoded_prompt, asked, text.local, text.data.decode()))
        return self._memory.of_ids([ids], asked.keys, PromptSource.RENDERED)

    async def _several(self, asked: _Asked, local: LocalModel, texts: list[str]) -> Answer:
        """Several prompts in one body: each is a request of its own to the engine."""
        if sum(map(len, texts)) > MAX_TEXT_BYTES:
            raise Unrenderable("the prompts together are longer than any context window")
        ids = await self._in_thread(lambda: [_encoded_prompt(asked, local, text) for text in texts])
        return self._memory.of_ids(ids, asked.keys, PromptSource.RENDERED, stream=asked.parsed.stream)

    async def _when_loaded(self, asked: _Asked) -> Answer:
        loading = asked.source.loading
        if loading is not None:
            done, _ = await asyncio.wait([asyncio.wrap_future(loading)], timeout=LOADING_WAIT_S)
            if not done:
                raise Unrenderable("tokenizer files are still being read")
            done.pop().exception()  # looked at, so that asyncio does not log it; `sources` tells of it
        return self._begin(asked.path, asked.parsed, asked.adapter)

    async def _from_worker(self, asked: _Asked) -> Answer:
        ids = self._remote.known(asked.key)
        if ids is None:
            body = question(asked.path, asked.parsed.fields, asked.parsed.model)
            if body is None:
                raise Unrenderable("a worker's /tokenize does not know some of the request's fields")
            ids = await self._remote.ask(asked.key, asked.source.urls, body)
        if ids is None:
            raise Unrenderable("no worker's /tokenize answered")
        return self._memory.of_ids([ids], asked.keys, PromptSource.WORKER)

    def _by_text(self, path: str, parsed: ParsedBody, adapter: str | None, error: Exception) -> Prompt | None:
        """The last resort."""
        self._reasons.count(error)
        try:
            return self._counted(self._text_prompt(path, parsed, CacheKeys.of(adapter, parsed.cache_salt)))
        except Exception as second:
            self._reasons.count(second)
            return None

    def _text_prompt(self, path: str, parsed: ParsedBody, keys: CacheKeys) -> TextPrompt | None:
        if path == COMPLETIONS_PATH:
            texts = [text.encode("utf-8", "surrogatepass") for text in completion_prompts(parsed.fields)[0]]
        else:
            texts = [canonical_text(path, parsed.fields)]
        if not texts or not texts[0]:
            return None
        tokens = max(1, int(sum(map(len, texts)) / self._lengths.of(parsed.model)))
        prompt = TextPrompt(texts[0], tokens, keys, multiple=len(texts) > 1)
        self._memory.hold_text(prompt.text_chain, prompt.text_bytes)
        return prompt

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self._off_loop += 1
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _counted(self, prompt: Prompt | None) -> Prompt | None:
        if prompt is not None:
            self._answers[prompt.source] += 1
        return prompt


async def _no_prompt() -> None:
    """What is left to find out where not even the text says anything."""


def _rendered(asked: _Asked, local: LocalModel) -> CutText:
    """The chat's prompt text. Pure: made for a thread as well."""
    return cut_text(local, render_chat(asked.path, asked.parsed.fields, local.renderer), framed=asked.framed)


def _encoded_prompt(asked: _Asked, local: LocalModel, text: str) -> array[int]:
    """A whole text's ids, less what the request has cut off."""
    frame = len(local.prefix) if asked.framed else 0
    return _shortened(asked, array("I", local.renderer.encode(text, asked.framed)), frame)


def _shortened(asked: _Asked, ids: array[int], frame: int) -> array[int]:
    return asked.truncation.shortened(ids, frame) if asked.truncation is not None else ids
