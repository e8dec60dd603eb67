"""Which streams can be continued exactly on another worker, and why not."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.layers.migration.request_fields import MessageContent, TrackedFields
from router.requests.request_head import RequestHead
from router.requests.rewrites.json_splice import MAX_SEARCHED_BYTES, VOUCHED
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, as_bool, as_int

_GUIDING: Final = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag",
)  # fmt: skip
_FREE_TOOLS: Final = (None, "auto", "none")
_STRICT = re.compile(rb'"strict"\s*:\s*true')
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})
_FIELDS = json_decoder(TrackedFields)
_MESSAGES = json_decoder(list[MessageContent])


class Ineligible(StrEnum):
    """Why an answer cannot go on elsewhere; the first group is known when the request arrives."""

    PATH = "path"
    """Another API than chat completions and completions: its streams carry no token ids."""
    OPTED_OUT = "opted_out"
    SIGNED = "signed"
    """The client vouches for the bytes of the body."""
    BODY = "body"
    """The body is too large to be read again, or is no object in UTF-8."""
    SEVERAL_ANSWERS = "several_answers"
    GUIDED_OUTPUT = "guided_output"
    """A grammar would begin at its root again."""
    PENALTIES = "penalties"
    """They count the answer only, and its beginning becomes prompt."""
    STOP = "stop"
    """The worker holds text back, which may be the beginning of a stop string."""
    MEDIA = "media"
    ECHO = "echo"
    PROMPT_LOGPROBS = "prompt_logprobs"
    HIDDEN_REASONING = "hidden_reasoning"
    """The worker withholds ids together with the reasoning."""
    TRUNCATION = "truncation"
    TRANSFER = "transfer"
    """The client gives transfer parameters of its own."""
    LENGTH = "length"
    """Prompt and answer are longer than the limit."""

    REFUSED_IDS = "refused_ids"
    """The worker does not know the question for ids."""
    NO_IDS = "no_ids"
    """The worker sends no ids."""
    SEAM = "seam"
    """No end of a character is known for too long."""
    REASONING = "reasoning"
    """The answer is within its reasoning: another parser would take the rest for content."""
    TOOL_CALL = "tool_call"
    """Part of a tool call has gone to the client."""
    LIMIT = "limit"
    """The answer has moved as often as it may."""
    FINISHED = "finished"
    """The answer has its finish reason, or its whole budget."""
    POOL_LOST = "pool_lost"
    """Less than half of the workers are ready: a storm would take the rest down."""


ON_ARRIVAL: Final = tuple(list(Ineligible)[: list(Ineligible).index(Ineligible.LENGTH) + 1])
"""The reasons that are known when the request arrives."""
LATER: Final = (Ineligible.REFUSED_IDS, Ineligible.NO_IDS, Ineligible.SEAM)
"""The reasons that streams with the question for ids may turn out to have."""


def fields_of(body: bytes) -> TrackedFields | None:
    """Return the fields of a body; None if it is no JSON object, or too large to be read again."""
    if len(body) > MAX_SEARCHED_BYTES:
        return None
    try:
        return _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def refusal_on_arrival(
    head: RequestHead, fields: TrackedFields | None, prompt_tokens: int, max_tokens: int
) -> Ineligible | None:
    """Return why the stream of a request cannot be continued; None if it can. `fields` are None if the body has none.

    Ids are kept up to `max_tokens`.
    """
    if head.fields.get(b"x-warmroute-migrate") == b"off":
        return Ineligible.OPTED_OUT
    if not VOUCHED.isdisjoint(head.fields):
        return Ineligible.SIGNED
    if fields is None:
        return Ineligible.BODY
    return Ineligible.LENGTH if prompt_tokens >= max_tokens else refusal(head.path, fields)


def refusal(path: str, fields: TrackedFields) -> Ineligible | None:
    """Return why the stream of a request cannot be continued; None if it can."""
    if path not in (CHAT_PATH, COMPLETIONS_PATH):
        return Ineligible.PATH
    if _several(fields):
        return Ineligible.SEVERAL_ANSWERS
    if _guided(fields):
        return Ineligible.GUIDED_OUTPUT
    if fields.presence_penalty or fields.frequency_penalty or fields.repetition_detection is not None:
        return Ineligible.PENALTIES
    if fields.stop or fields.include_stop_str_in_output:
        return Ineligible.STOP
    return _of_prompt(fields)


def _several(fields: TrackedFields) -> bool:
    if (as_int(fields.n) or 1) != 1 or (as_int(fields.best_of) or 1) != 1 or fields.use_beam_search:
        return True
    return _several_prompts(bytes(fields.prompt).lstrip())


def _several_prompts(prompt: bytes) -> bool:
    """Return whether a `prompt` is a list of anything but ids."""
    return prompt.startswith(b"[") and not prompt[1:].lstrip()[:1].isdigit()


def _guided(fields: TrackedFields) -> bool:
    chosen, form = fields.tool_choice, fields.response_format
    if chosen not in _FREE_TOOLS or fields.functions or fields.function_call:
        return True
    if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
        return True
    guiding = any(getattr(fields, name) is not None for name in _GUIDING)
    return guiding or _STRICT.search(bytes(fields.tools)) is not None


def _of_prompt(fields: TrackedFields) -> Ineligible | None:
    if fields.prompt_embeds is not None or has_media(bytes(fields.messages)):
        return Ineligible.MEDIA
    if fields.echo:
        return Ineligible.ECHO
    if fields.prompt_logprobs is not None:
        return Ineligible.PROMPT_LOGPROBS
    if as_bool(fields.include_reasoning) is False:
        return Ineligible.HIDDEN_REASONING
    if fields.truncate_prompt_tokens is not None:
        return Ineligible.TRUNCATION
    return Ineligible.TRANSFER if fields.kv_transfer_params is not None else None


def has_media(messages: bytes) -> bool:
    """Return whether a part of the messages is no text, or may be none."""
    if not messages.startswith(b"["):
        return False
    try:
        read = _MESSAGES.decode(messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return any(isinstance(message.content, list) and not all(map(_is_text, message.content)) for message in read)


def _is_text(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type") in _TEXT_PARTS)
