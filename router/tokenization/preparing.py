"""From the decoded fields of one request to the text to tokenise. Pure: for the event loop and for a thread."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.parsed_body import COMPLETIONS_PATH, ParsedBody
from router.tokenization.hashing import CacheKeys
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.local.sources import TokenizerSource
from router.tokenization.remote_tokenizer import tokenize_question
from router.tokenization.rendering import MAX_TEXT_BYTES, SegmentedText, segmented_text
from router.tokenization.request import (
    Truncation,
    adds_special_tokens,
    completion_prompts,
    render_chat,
    reused_ids,
    text_chars,
)
from router.tokenization.text import canonical_text
from router.tokenization.threads import TextUnavailable
from router.tokenization.unidentified import reason_of

MAX_CHARS_PER_TOKEN = 16
"""Characters per token that no whole text reaches: prose has four to five characters a token, indented code up to
eight.
"""
NOT_ANSWERED = "no worker's /tokenize answered"
MAX_ASKED_CHARS = 2_097_152
"""Longest text that a worker is asked to tokenise: about 500,000 tokens, whose ids take 10 ms to read."""
MAX_SEVERAL_CHARS = 2_097_152
"""Longest sum of several prompts in one body: a second or two of work."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One request to identify. Only equal requests share a `key`; `truncation` is the request's own setting.

    `asks_worker`: a worker's /tokenize can be asked now.
    """

    path: str
    parsed: ParsedBody
    adapter: str | None
    source: TokenizerSource
    keys: CacheKeys
    key: int
    truncation: Truncation | None
    asks_worker: bool

    def shortened(self, ids: array[int], frame: int) -> array[int]:
        return self.truncation.shortened(ids, frame) if self.truncation is not None else ids

    def encoded(self, local: LocalModel, text: str, *, framed: bool) -> array[int]:
        frame = len(local.prefix) if framed else 0
        return self.shortened(local.encode(text, framed=framed), frame)


class GivenIds(NamedTuple):
    prompts: list[array[int]]


class SeveralTexts(NamedTuple):
    """Texts that are separate requests to the engine, for one local model."""

    local: LocalModel
    texts: list[str]
    framed: bool


class TokenizeQuestion(NamedTuple):
    """A body for a worker's /tokenize."""

    body: bytes


class TokenizerLoading(NamedTuple):
    """Tokenizer files are still being read, so the next step is not known."""

    prompt_request: PromptRequest


class TextOnly(NamedTuple):
    """Only the text is known, for this reason."""

    texts: list[bytes]
    reason: str


PreparedPrompt: TypeAlias = GivenIds | SegmentedText | SeveralTexts | TokenizeQuestion | TokenizerLoading | TextOnly


def prepare(prompt_request: PromptRequest, fields: BodyFields) -> PreparedPrompt:
    """Decide how to identify the prompt: from ids in the body, else by the model's source.

    Raises:
        Unrenderable: the prompt has no ids; the error gives the reason.
    """
    source = prompt_request.source
    texts: list[str] = []
    if prompt_request.path != COMPLETIONS_PATH:
        reused = reused_ids(prompt_request.path, fields)
        if reused is not None:
            return GivenIds([reused])
    else:
        texts, ids = completion_prompts(fields)
        if ids:
            return GivenIds([prompt_request.shortened(prompt, 0) for prompt in ids])
    if source.local is not None:
        return _for_local(prompt_request, fields, source.local, texts)
    if source.loading is not None:
        return TokenizerLoading(prompt_request)
    if source.urls and len(texts) <= 1:
        if not prompt_request.asks_worker:
            raise Unrenderable(NOT_ANSWERED)
        _check_question(prompt_request, len(texts[0]) if texts else text_chars(prompt_request.path, fields))
        return TokenizeQuestion(tokenize_question(prompt_request.path, fields, prompt_request.parsed.model))
    raise Unrenderable(source.why)


def _for_local(
    prompt_request: PromptRequest, fields: BodyFields, local: LocalModel, texts: list[str]
) -> PreparedPrompt:
    framed = adds_special_tokens(prompt_request.path, fields)
    if len(texts) > 1:
        if sum(map(len, texts)) > MAX_SEVERAL_CHARS:
            raise Unrenderable("the prompts together are too long to be tokenised")
        return SeveralTexts(local, texts, framed)
    if texts:
        _check_length(prompt_request, len(texts[0]))
        return segmented_text(local, texts[0], framed=framed)
    if fields.chat_template is not None and not prompt_request.source.trusts_templates:
        raise Unrenderable("the request has its own chat template, and these are not trusted")
    _check_length(prompt_request, text_chars(prompt_request.path, fields))
    text = render_chat(prompt_request.path, fields, local.renderer)
    _check_length(prompt_request, len(text))
    return segmented_text(local, text, framed=framed)


def _check_length(prompt_request: PromptRequest, chars: int) -> None:
    """Refuse to render or tokenise a prompt that no worker would compute; vLLM checks before it tokenises too."""
    tokens = prompt_request.source.longest_context_tokens
    if tokens is not None and prompt_request.truncation is None and chars > tokens * MAX_CHARS_PER_TOKEN:
        raise TextUnavailable("the prompt is longer than the model's context window")
    if chars > MAX_TEXT_BYTES:
        raise Unrenderable("the prompt is longer than any context window")


def _check_question(prompt_request: PromptRequest, chars: int) -> None:
    """Check a text that a worker would tokenise. Its answer is read on the event loop."""
    _check_length(prompt_request, chars)
    if chars > MAX_ASKED_CHARS:
        raise Unrenderable("the prompt is too long to be tokenised by a worker")


def prepare_or_text(prompt_request: PromptRequest) -> PreparedPrompt:
    """Decode the body and call `prepare`, in a thread. A body that cannot be rendered becomes a text.

    The decoded fields never leave the thread.

    Raises:
        RequestError: the body is not valid JSON.
    """
    fields = prompt_request.parsed.decoded()
    try:
        return prepare(prompt_request, fields)
    except TextUnavailable:
        raise
    except Exception as error:  # A body or a template can fail in any way. The text remains.
        return TextOnly(texts_of(prompt_request.path, fields), reason_of(error))


def texts_of(path: str, fields: BodyFields) -> list[bytes]:
    """Return the prompt's text, or the texts of several prompts; empty if there is none.

    Raises:
        Unrenderable: the body has no text.
    """
    if path == COMPLETIONS_PATH:
        return [text.encode("utf-8", "surrogatepass") for text in completion_prompts(fields)[0]]
    text = canonical_text(path, fields)
    return [text] if text else []
