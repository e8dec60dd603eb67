"""The identity of a request's prompt, from the best source available."""

from __future__ import annotations

import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from backends.vllm.control import WorkerClient
from backends.vllm.unrenderable import Unrenderable
from router.config.budgets import PROMPTS
from router.config.model import Config
from router.metrics.instruments import Reading
from router.residency.prompt import Prompt, PromptSource
from router.security.tls import WorkerTls
from router.tokenization.body.bounds import decoded_bytes, few_elements, fits_inline
from router.tokenization.body.intake import MIN_BODY_BYTES
from router.tokenization.body.known_bodies import LEARN_EVERY_MESSAGES, MOST_NEW_MESSAGES
from router.tokenization.body.parsed_body import CHAT_PATH, PROMPT_PATHS, ParsedBody
from router.tokenization.hashing import CacheKeys
from router.tokenization.identification_deadline import IdentificationDeadline, IdentificationTimeout, limit_s
from router.tokenization.local.sources import ModelSources, ended
from router.tokenization.preparing import (
    NOT_ANSWERED,
    GivenIds,
    PreparedPrompt,
    PromptRequest,
    SeveralTexts,
    TokenizeQuestion,
    TokenizerLoading,
    prepare,
    prepare_or_text,
    texts_of,
)
from router.tokenization.remote_tokenizer import WorkerTokenizer
from router.tokenization.rendering import KnownPrefix, PromptMemory, SegmentedText, with_turns
from router.tokenization.request import request_key, truncation
from router.tokenization.text import TextPrompt, TokenLengths
from router.tokenization.threads import MemoryBudget, TextUnavailable, TokenizerTask, TokenizerThreads
from router.tokenization.turns import ChatTurns, chat_turns
from router.tokenization.unidentified import UnidentifiedReasons

T = TypeVar("T")

INLINE_NEW_BYTES = 4_096
"""New text tokenised on the event loop: about 0.6 ms. A hop to a thread and back costs about 0.1 ms."""
UNDECODED = "the body is too large, or has too many elements, to be decoded"
LOADING_WAIT_S = 5.0
"""Maximum wait of a prompt for tokenizer files that are being read."""


PendingPrompt: TypeAlias = Callable[[], Awaitable[Prompt | None]]
"""Identifies a prompt at any duration up to the time limit, without errors; None: there is none."""


class PendingIdentity(Protocol):
    def __call__(self) -> Awaitable[IdentityResult]: ...


IdentityResult: TypeAlias = Prompt | PendingIdentity | TokenizerLoading | None


class PromptIdentifier:
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
        self._threads = TokenizerThreads()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer-files")
        self.sources = ModelSources(config, self._reader, environ, clock)
        self._memory = PromptMemory(budget - budget // 8)
        self.bodies = self._memory.bodies
        tls = worker_tls or WorkerTls(config.worker_tls)
        self._remote = WorkerTokenizer(budget // 8, clock, WorkerClient(tls=tls.context_for))
        self._token_lengths = TokenLengths()
        self._reasons = UnidentifiedReasons()
        self._deadlines = IdentificationDeadline(limit_s)

    # Identification.

    def identify_now(self, path: str, parsed: ParsedBody, adapter: str | None) -> Prompt | PendingPrompt | None:
        """Return the prompt if that takes well under a millisecond, else what to await for it; None if the path or the
        body has none.

        `adapter` is the LoRA adapter that the request's model names, if any. Never raises.
        """
        try:
            answer = self._begin(path, parsed, adapter)
        except Exception as error:  # A body or a template can fail in any way. The text remains.
            answer = self._last_resort(path, parsed, adapter, error)
        if answer is None or isinstance(answer, Prompt):
            return answer
        parsed.drop_prompt()
        return partial(self._identify, path, parsed, adapter, answer)

    async def identify(self, path: str, parsed: ParsedBody, adapter: str | None) -> Prompt | None:
        """Return the prompt, at any duration up to the time limit; None if the path or the body has none. Never
        raises.
        """
        answer = self.identify_now(path, parsed, adapter)
        return answer if answer is None or isinstance(answer, Prompt) else await answer()

    async def _identify(
        self, path: str, parsed: ParsedBody, adapter: str | None, answer: IdentityResult
    ) -> Prompt | None:
        try:
            if isinstance(answer, TokenizerLoading):
                answer = await self._when_loaded(answer.prompt_request)
            return await self._in_time(parsed, answer, adapter)
        except Exception as error:
            last = self._last_resort(path, parsed, adapter, error)
        try:
            return await self._in_time(parsed, last, adapter)
        except Exception as error:
            self._reasons.count(error)
            return None

    def charge_to(self, memory: MemoryBudget) -> None:
        self._threads.memory = memory

    def observe_usage(self, model: str | None, prompt: Prompt, prompt_tokens: int) -> None:
        """Learn the bytes per token from the length that a worker reported for `prompt`."""
        if isinstance(prompt, TextPrompt) and not prompt.multiple:
            self._token_lengths.observe(model or "", prompt.text_bytes, prompt_tokens)

    def describe(self, model: str) -> str:
        return self.sources.describe(model, self._remote.trouble)

    async def aclose(self) -> None:
        self.sources.close()
        self._deadlines.close()
        self._threads.close()
        self._reader.shutdown(wait=False, cancel_futures=True)
        await self._remote.aclose()

    def statistics(self) -> dict[str, object]:
        return {
            **self._threads.statistics(),
            **self._deadlines.statistics(),
            "text_reasons": self._reasons.statistics(),
            "bytes_per_token": self._token_lengths.statistics(),
            "workers": self._remote.statistics(),
            **self._memory.statistics(),
            **self.sources.statistics(),
        }

    def readings(self) -> Iterator[Reading]:
        """Yield what the memory of prompts saves, and how many models are tokenised in which way."""
        known: Mapping[str, Any] = self.statistics()
        for tokenizer, key in (("local", "models_local"), ("worker", "models_by_worker"), ("none", "models_text_only")):
            yield "warmroute_models", (tokenizer,), known[key]
        yield "warmroute_identified_prompt_tokens", ("memory",), known["memo"]["found_tokens"]
        yield "warmroute_identified_prompt_tokens", ("tokenizer",), known["memo"]["new_tokens"]

    # Steps of an identification.

    def _begin(self, path: str, parsed: ParsedBody, adapter: str | None) -> IdentityResult:
        if path not in PROMPT_PATHS or not parsed.has_prompt:
            return None
        source = self.sources.of(parsed.model, adapter)
        keys = CacheKeys.of(adapter, parsed.cache_salt)
        key = request_key(path, parsed, source.local.seed if source.local is not None else hash(parsed.model), keys)
        shortened = truncation(path, parsed.fields, source.context_tokens)
        asks_worker = False
        if source.local is None and source.urls:
            ids = self._remote.known(key)
            if ids is not None:
                return self._memory.of_ids([ids], keys, PromptSource.WORKER)
            asks_worker = self._remote.asks(source.urls)
        answered = self._memory.answered(key)
        if answered is not None and (shortened is None or answered.tokens <= shortened.tokens):
            return answered
        prompt_request = PromptRequest(path, parsed, adapter, source, keys, key, shortened, asks_worker)
        if parsed.shortened:
            text = self._next_turn(prompt_request)
            if text is not None:
                return self._by_segments(prompt_request, text)
            parsed.read_whole()
        if fits_inline(parsed) and not (source.trusts_templates and parsed.decoded().chat_template is not None):
            return self._prepare(prompt_request)
        if source.local is None and source.loading is not None:
            return TokenizerLoading(prompt_request)
        return partial(self._prepare_in_thread, prompt_request)

    def _next_turn(self, prompt_request: PromptRequest) -> SegmentedText | None:
        """Return the text that continues the conversation in a shortened body; None if the whole body is needed."""
        parsed, local = prompt_request.parsed, prompt_request.source.local
        known, body = parsed.known, parsed.body
        if known is None or body is None or local is None:
            return None
        if prompt_request.truncation is not None or not few_elements(known.shortened):
            return None
        turns = chat_turns(parsed.fields, local, prompt_request.keys, known.start)
        if turns is None:
            return None
        text = self._memory.continued(turns)
        if text is not None:
            self.bodies.extend(body, known, turns.hashes)
        return text

    def _prepare(self, prompt_request: PromptRequest) -> IdentityResult:
        """Continue a known conversation, or prepare the whole prompt."""
        parsed = prompt_request.parsed
        fields, local = parsed.decoded(), prompt_request.source.local
        turns = None
        long_chat = prompt_request.path == CHAT_PATH and parsed.size_bytes >= MIN_BODY_BYTES
        if local is not None and prompt_request.truncation is None and long_chat:
            turns = chat_turns(fields, local, prompt_request.keys)
        if turns is None:
            return self._continue(prompt_request, prepare(prompt_request, fields))
        text = self._memory.continued(turns)
        if text is None:
            whole = prepare(prompt_request, fields)
            if not isinstance(whole, SegmentedText):
                return self._continue(prompt_request, whole)
            text = with_turns(whole, turns)
        self._learn_body(parsed, text, turns)
        return self._by_segments(prompt_request, text)

    def _learn_body(self, parsed: ParsedBody, text: SegmentedText, turns: ChatTurns) -> None:
        """Learn where the messages of a whole body end.

        A known conversation with few new messages has another spelling than before, or its start was dropped. Its next
        turn may have another spelling, too, so it is learned now and then.
        """
        unknown = text.prefix is None or text.new_messages > MOST_NEW_MESSAGES
        due = len(turns.messages) % LEARN_EVERY_MESSAGES < 2
        if (unknown or due) and parsed.searched and parsed.body is not None:
            self.bodies.learn(parsed.body, turns.hashes)

    async def _prepare_in_thread(self, prompt_request: PromptRequest) -> IdentityResult:
        """Decode and render a large body, or one with its own template, in a thread. The event loop stays free."""
        parsed = prompt_request.parsed
        memory_bytes = decoded_bytes(parsed)
        if memory_bytes is None:
            raise TextUnavailable(UNDECODED)
        work = partial(prepare_or_text, prompt_request)
        return self._continue(prompt_request, await self._in_thread(parsed, work, parsed.size_bytes, memory_bytes))

    def _continue(self, prompt_request: PromptRequest, prepared: PreparedPrompt) -> IdentityResult:
        if isinstance(prepared, SegmentedText):
            return self._by_segments(prompt_request, prepared)
        if isinstance(prepared, GivenIds):
            return self._memory.of_ids(
                prepared.prompts, prompt_request.keys, PromptSource.IDS, stream=prompt_request.parsed.stream
            )
        if isinstance(prepared, SeveralTexts):
            return partial(self._several, prompt_request, prepared)
        if isinstance(prepared, TokenizeQuestion):
            return partial(self._from_worker, prompt_request, prepared)
        if isinstance(prepared, TokenizerLoading):
            return prepared
        self._reasons.count(prepared.reason)
        return self._text_prompt(prompt_request.parsed, prompt_request.keys, prepared.texts)

    def _by_segments(self, prompt_request: PromptRequest, text: SegmentedText) -> IdentityResult:
        """Tokenise a segmented text: on the event loop if little of it is new, else in a thread."""
        most = prompt_request.truncation.tokens if prompt_request.truncation is not None else None
        rendered = self._memory.look_up(prompt_request.key, prompt_request.keys, text, most)
        if rendered.new_bytes > INLINE_NEW_BYTES:
            return partial(self._encoded, prompt_request, rendered)
        return self._finished(prompt_request, rendered, rendered.encode())

    async def _encoded(self, prompt_request: PromptRequest, rendered: KnownPrefix) -> IdentityResult:
        return self._finished(
            prompt_request, rendered, await self._in_thread(prompt_request.parsed, rendered.encode, rendered.new_bytes)
        )

    def _finished(
        self, prompt_request: PromptRequest, rendered: KnownPrefix, ids: list[array[int]] | array[int] | None
    ) -> IdentityResult:
        if ids is None:
            return self._continue(prompt_request, prepare(prompt_request, prompt_request.parsed.decoded()))
        prompt = self._memory.finish(rendered, ids)
        return prompt if prompt is not None else partial(self._truncated, prompt_request, rendered.text)

    async def _truncated(self, prompt_request: PromptRequest, text: SegmentedText) -> IdentityResult:
        """Tokenise the whole text of a truncated prompt, since its blocks may start anywhere."""
        work = partial(prompt_request.encoded, text.local, text.data.decode(), framed=text.framed)
        ids = await self._in_thread(prompt_request.parsed, work, len(text.data))
        return self._memory.of_ids([ids], prompt_request.keys, PromptSource.RENDERED)

    async def _several(self, prompt_request: PromptRequest, several: SeveralTexts) -> IdentityResult:
        """Tokenise several prompts of one body; each is a request of its own to the engine."""
        size = sum(map(len, several.texts))
        ids = await self._in_thread(prompt_request.parsed, partial(_all_encoded, prompt_request, several), size)
        return self._memory.of_ids(ids, prompt_request.keys, PromptSource.RENDERED, stream=prompt_request.parsed.stream)

    async def _when_loaded(self, prompt_request: PromptRequest) -> IdentityResult:
        loading = prompt_request.source.loading
        if loading is not None and not await ended([loading], LOADING_WAIT_S):
            raise Unrenderable("tokenizer files are still being read")
        return self._begin(prompt_request.path, prompt_request.parsed, prompt_request.adapter)

    async def _from_worker(self, prompt_request: PromptRequest, question: TokenizeQuestion) -> IdentityResult:
        source = prompt_request.source
        most_tokens = source.longest_context_tokens if prompt_request.truncation is None else None
        ids = await self._remote.ask(prompt_request.key, source.urls, question.body, most_tokens)
        if ids is None:
            raise Unrenderable(NOT_ANSWERED)
        return self._memory.of_ids([ids], prompt_request.keys, PromptSource.WORKER)

    def _last_resort(self, path: str, parsed: ParsedBody, adapter: str | None, error: Exception) -> IdentityResult:
        """Return the text, or None (the size decides) if the body is not to be decoded. Never raises."""
        self._reasons.count(error)
        keys = CacheKeys.of(adapter, parsed.cache_salt)
        if not fits_inline(parsed):
            return (
                None
                if isinstance(error, TextUnavailable | IdentificationTimeout)
                else partial(self._text_in_thread, path, parsed, keys)
            )
        try:
            return self._text_prompt(parsed, keys, texts_of(path, parsed.decoded()))
        except Exception as second:
            self._reasons.count(second)
            return None

    async def _text_in_thread(self, path: str, parsed: ParsedBody, keys: CacheKeys) -> IdentityResult:
        memory_bytes = decoded_bytes(parsed)
        if memory_bytes is None:
            raise TextUnavailable(UNDECODED)
        work = partial(_decoded_texts, path, parsed)
        texts = await self._in_thread(parsed, work, parsed.size_bytes, memory_bytes)
        return self._text_prompt(parsed, keys, texts)

    def _text_prompt(self, parsed: ParsedBody, keys: CacheKeys, texts: list[bytes]) -> TextPrompt | None:
        if not texts or not texts[0]:
            return None
        tokens = max(1, int(sum(map(len, texts)) / self._token_lengths.of(parsed.model)))
        prompt = TextPrompt(texts[0], tokens, keys, multiple=len(texts) > 1)
        self._memory.recent.hold(prompt.text_chain, prompt.text_bytes)
        return prompt

    async def _in_time(self, parsed: ParsedBody, answer: IdentityResult, adapter: str | None) -> Prompt | None:
        if answer is None or isinstance(answer, Prompt):
            return answer
        asks_worker = self.sources.of(parsed.model, adapter).local is None
        return await self._deadlines.wait(parsed, partial(_settled, answer), asks_worker=asks_worker)

    async def _in_thread(self, parsed: ParsedBody, work: Callable[[], T], text_bytes: int, memory_bytes: int = 0) -> T:
        task = TokenizerTask(text_bytes, memory_bytes)
        parsed.task = task
        return await self._threads.run(task, work)


async def _settled(answer: IdentityResult) -> Prompt | None:
    while answer is not None and not isinstance(answer, Prompt):
        if isinstance(answer, TokenizerLoading):
            raise Unrenderable("tokenizer files are still being read")
        answer = await answer()
    return answer


def _all_encoded(prompt_request: PromptRequest, several: SeveralTexts) -> list[array[int]]:
    return [prompt_request.encoded(several.local, text, framed=several.framed) for text in several.texts]


def _decoded_texts(path: str, parsed: ParsedBody) -> list[bytes]:
    return texts_of(path, parsed.decoded())
