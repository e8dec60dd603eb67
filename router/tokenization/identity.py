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
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from backends.vllm.control import WorkerClient
from backends.vllm.unrenderable import Unrenderable
from router.config.budgets import PROMPTS
from router.config.model import Config
from router.residency.prompt import Prompt, PromptSource
from router.security.worker_tls import WorkerTls
from router.tokenization.body_bounds import decoded_bytes, fits_inline
from router.tokenization.hashing import CacheKeys
from router.tokenization.identification_deadline import Deadlines, Late, limit_s
from router.tokenization.intake import PROMPT_PATHS, ParsedBody
from router.tokenization.preparing import (
    Asked,
    Ids,
    Prepared,
    Question,
    Several,
    Unread,
    prepare,
    prepare_or_text,
    texts_of,
)
from router.tokenization.remote_tokenizer import WorkerTokenizer
from router.tokenization.rendering import CutText, PromptMemory, Rendered
from router.tokenization.request import request_key, truncation
from router.tokenization.sources import ModelSources
from router.tokenization.text import TextPrompt, TokenLengths
from router.tokenization.threads import Lanes, Room, Task, Unsized
from router.tokenization.unidentified import Reasons

T = TypeVar("T")

INLINE_NEW_BYTES = 4_096
"""Text tokenised on the event loop: about 0.6 ms. A hop to a thread and back costs about 0.1 ms."""
UNDECODED = "the body is too large, or has too many elements, to be decoded"
LOADING_WAIT_S = 5.0
"""How long a prompt waits for tokenizer files that are being read."""


class Later(Protocol):
    """The rest of the way, for a coroutine."""

    def __call__(self) -> Awaitable[Answer]:
        """Go on."""
        ...


class Loading(NamedTuple):
    """It has to wait for tokenizer files."""

    asked: Asked


Answer: TypeAlias = Prompt | Later | Loading | None


class Identity:
    """All sources together, with the memory they share (`residency.memo_bytes` of the configuration)."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        worker_tls: WorkerTls | None = None,
        limit_s: Callable[[int], float] = limit_s,
    ) -> None:
        budget = PROMPTS.of(config.residency)
        self._lanes = Lanes()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer-files")
        self._sources = ModelSources(config, self._reader, environ)
        self._memory = PromptMemory(budget - budget // 8)
        tls = worker_tls or WorkerTls(config.worker_tls)
        self._remote = WorkerTokenizer(budget // 8, clock, WorkerClient(tls=tls.context_for))
        self._lengths = TokenLengths()
        self._reasons = Reasons()
        self._answers = dict.fromkeys(PromptSource, 0)
        self._deadlines = Deadlines(limit_s)

    # asking

    def identify_now(self, path: str, parsed: ParsedBody, adapter: str | None) -> Prompt | None:
        """The prompt, if that takes well under a millisecond; None where `identify` has to be awaited.

        `adapter` is the LoRA adapter that the request's model names, if it names one. Never raises.
        """
        try:
            answer = self._begin(path, parsed, adapter)
        except Exception as error:  # what a body or a template can do wrong has no end; its text remains
            answer = self._failed(path, parsed, adapter, error)
            if answer is None:
                answer = _no_prompt
        if answer is None or isinstance(answer, Prompt):
            return self._counted(answer)
        parsed.drop_prompt()
        parsed.pending = answer
        return None

    async def identify(self, path: str, parsed: ParsedBody, adapter: str | None) -> Prompt | None:
        """The prompt by whatever it takes; None where the path or the body has none. Never raises."""
        pending, parsed.pending = parsed.pending, None
        try:
            answer: Answer = pending if pending is not None else self._begin(path, parsed, adapter)  # type: ignore[assignment]
            if isinstance(answer, Loading):
                answer = await self._when_loaded(answer.asked)
            return self._counted(await self._in_time(parsed, answer, adapter))
        except Exception as error:
            last = self._failed(path, parsed, adapter, error)
        try:
            return self._counted(await self._in_time(parsed, last, adapter))
        except Exception as error:
            self._reasons.count(error)
            return None

    def charge_to(self, room: Room) -> None:
        """Have the memory of decoded bodies taken from `room`."""
        self._lanes.room = room

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
        self._deadlines.close()
        self._lanes.close()
        self._reader.shutdown(wait=False, cancel_futures=True)
        await self._remote.aclose()

    def statistics(self) -> dict[str, object]:
        """Prompts by source, reasons for text, and what the memories hold."""
        return {
            "prompts": {source.value: count for source, count in self._answers.items()},
            **self._lanes.statistics(),
            **self._deadlines.statistics(),
            "text_reasons": self._reasons.statistics(),
            "bytes_per_token": self._lengths.statistics(),
            "workers": self._remote.statistics(),
            **self._memory.statistics(),
            **self._sources.statistics(),
        }

    # the way to an answer

    def _begin(self, path: str, parsed: ParsedBody, adapter: str | None) -> Answer:
        if path not in PROMPT_PATHS or not parsed.has_prompt:
            return None
        source = self._sources.of(parsed.model, adapter)
        keys = CacheKeys.of(adapter, parsed.cache_salt)
        key = request_key(path, parsed, source.local.seed if source.local is not None else 0, keys)
        shortened = truncation(path, parsed.fields, source.context_tokens)
        answered = self._memory.answered(key)
        if answered is not None and (shortened is None or answered.tokens <= shortened.tokens):
            return answered
        asked = Asked(path, parsed, adapter, source, keys, key, shortened)
        if fits_inline(parsed) and not (source.trusts_templates and parsed.decoded().chat_template is not None):
            return self._go_on(asked, prepare(asked, parsed.decoded()))
        if source.local is None and source.loading is not None:
            return Loading(asked)
        return partial(self._beside, asked)

    async def _beside(self, asked: Asked) -> Answer:
        """Decode and render a large body, or with a strange template, in a thread: the loop serves others meanwhile."""
        parsed = asked.parsed
        memory_bytes = decoded_bytes(parsed)
        if memory_bytes is None:
            raise Unsized(UNDECODED)
        work = partial(prepare_or_text, asked)
        return self._go_on(asked, await self._in_thread(parsed, work, parsed.size_bytes, memory_bytes))

    def _go_on(self, asked: Asked, prepared: Prepared) -> Answer:
        """With what the body's fields have come to."""
        if isinstance(prepared, CutText):
            return self._by_units(asked, prepared)
        if isinstance(prepared, Ids):
            return self._memory.of_ids(prepared.prompts, asked.keys, PromptSource.IDS, stream=asked.parsed.stream)
        if isinstance(prepared, Several):
            return partial(self._several, asked, prepared)
        if isinstance(prepared, Question):
            return partial(self._from_worker, asked, prepared)
        if isinstance(prepared, Unread):
            return Loading(asked)
        self._reasons.count(prepared.reason)
        return self._text_prompt(asked.parsed, asked.keys, prepared.texts)

    def _by_units(self, asked: Asked, text: CutText) -> Answer:
        """From a text in units: tokenised here if little of it is new, else in a thread."""
        most = asked.truncation.tokens if asked.truncation is not None else None
        rendered = self._memory.look_up(asked.key, asked.keys, text, most)
        if rendered.new_bytes > INLINE_NEW_BYTES:
            return partial(self._encoded, asked, rendered)
        return self._finished(asked, rendered, rendered.encode())

    async def _encoded(self, asked: Asked, rendered: Rendered) -> Answer:
        return self._finished(asked, rendered, await self._in_thread(asked.parsed, rendered.encode, rendered.new_bytes))

    def _finished(self, asked: Asked, rendered: Rendered, ids: list[array[int]] | array[int]) -> Answer:
        prompt = self._memory.finish(rendered, ids)
        return prompt if prompt is not None else partial(self._truncated, asked, rendered.text)

    async def _truncated(self, asked: Asked, text: CutText) -> Answer:
        """A prompt that is a part of its text: tokenised whole, since its blocks may start anywhere."""
        work = partial(asked.encoded, text.local, text.data.decode(), framed=text.framed)
        ids = await self._in_thread(asked.parsed, work, len(text.data))
        return self._memory.of_ids([ids], asked.keys, PromptSource.RENDERED)

    async def _several(self, asked: Asked, several: Several) -> Answer:
        """Several prompts in one body: each is a request of its own to the engine."""
        size = sum(map(len, several.texts))
        ids = await self._in_thread(asked.parsed, partial(_all_encoded, asked, several), size)
        return self._memory.of_ids(ids, asked.keys, PromptSource.RENDERED, stream=asked.parsed.stream)

    async def _when_loaded(self, asked: Asked) -> Answer:
        loading = asked.source.loading
        if loading is not None:
            done, _ = await asyncio.wait([asyncio.wrap_future(loading)], timeout=LOADING_WAIT_S)
            if not done:
                raise Unrenderable("tokenizer files are still being read")
            done.pop().exception()  # looked at, so that asyncio does not log it; `sources` tells of it
        return self._begin(asked.path, asked.parsed, asked.adapter)

    async def _from_worker(self, asked: Asked, question: Question) -> Answer:
        ids = self._remote.known(asked.key)
        if ids is None:
            if question.body is None:
                raise Unrenderable("a worker's /tokenize does not know some of the request's fields")
            most_tokens = asked.source.longest_context_tokens if asked.truncation is None else None
            ids = await self._remote.ask(asked.key, asked.source.urls, question.body, most_tokens)
        if ids is None:
            raise Unrenderable("no worker's /tokenize answered")
        return self._memory.of_ids([ids], asked.keys, PromptSource.WORKER)

    def _failed(self, path: str, parsed: ParsedBody, adapter: str | None, error: Exception) -> Answer:
        """The last resort: the text, or the size where the body is not to be decoded. Never raises."""
        self._reasons.count(error)
        keys = CacheKeys.of(adapter, parsed.cache_salt)
        if not fits_inline(parsed):
            return None if isinstance(error, Unsized | Late) else partial(self._by_text, path, parsed, keys)
        try:
            return self._text_prompt(parsed, keys, texts_of(path, parsed.decoded()))
        except Exception as second:
            self._reasons.count(second)
            return None

    async def _by_text(self, path: str, parsed: ParsedBody, keys: CacheKeys) -> Answer:
        """The text of a body that is decoded in a thread."""
        memory_bytes = decoded_bytes(parsed)
        if memory_bytes is None:
            raise Unsized(UNDECODED)
        work = partial(_decoded_texts, path, parsed)
        texts = await self._in_thread(parsed, work, parsed.size_bytes, memory_bytes)
        return self._text_prompt(parsed, keys, texts)

    def _text_prompt(self, parsed: ParsedBody, keys: CacheKeys, texts: list[bytes]) -> TextPrompt | None:
        if not texts or not texts[0]:
            return None
        tokens = max(1, int(sum(map(len, texts)) / self._lengths.of(parsed.model)))
        prompt = TextPrompt(texts[0], tokens, keys, multiple=len(texts) > 1)
        self._memory.hold_text(prompt.text_chain, prompt.text_bytes)
        return prompt

    async def _in_time(self, parsed: ParsedBody, answer: Answer, adapter: str | None) -> Prompt | None:
        """Go on to the prompt, as long as that may take."""
        if answer is None or isinstance(answer, Prompt):
            return answer
        asks_worker = self._sources.of(parsed.model, adapter).local is None
        return await self._deadlines.wait(parsed, partial(_settled, answer), asks_worker=asks_worker)

    async def _in_thread(self, parsed: ParsedBody, work: Callable[[], T], text_bytes: int, memory_bytes: int = 0) -> T:
        task = Task(text_bytes, memory_bytes)
        parsed.pending = task
        return await self._lanes.run(task, work)

    def _counted(self, prompt: Prompt | None) -> Prompt | None:
        if prompt is not None:
            self._answers[prompt.source] += 1
        return prompt


async def _no_prompt() -> None:
    """What is left to find out where not even the text says anything."""


async def _settled(answer: Answer) -> Prompt | None:
    """Go from answer to answer, until one is the last."""
    while answer is not None and not isinstance(answer, Prompt):
        if isinstance(answer, Loading):
            raise Unrenderable("tokenizer files are still being read")
        answer = await answer()
    return answer


def _all_encoded(asked: Asked, several: Several) -> list[array[int]]:
    return [asked.encoded(several.local, text, framed=several.framed) for text in several.texts]


def _decoded_texts(path: str, parsed: ParsedBody) -> list[bytes]:
    return texts_of(path, parsed.decoded())
