"""One request's prompt, in the forms that the identity works with."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from backends.vllm.render import ChatRenderer, gives_token_ids
from backends.vllm.unrenderable import Unrenderable
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.parsed_body import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    ParsedBody,
    as_bool,
    as_int,
)
from router.tokenization.hashing import CacheKeys

_PASSED_ON = {
    CHAT_PATH: (
        "messages", "tools", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort",
        "mm_processor_kwargs",
    ),
    MESSAGES_PATH: ("messages", "system", "tools", "thinking", "output_config", "chat_template_kwargs"),
    RESPONSES_PATH: (
        "input", "instructions", "tools", "reasoning", "chat_template_kwargs", "previous_response_id",
        "previous_input_messages", "prompt", "mm_processor_kwargs",
    ),
}  # fmt: skip
_TEXT_PARTS = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "tool_reference", "tool_use", "redacted_thinking"}
)
"""Parts and blocks of a message that are not media."""


def request_key(path: str, parsed: ParsedBody, seed: int, keys: CacheKeys) -> int:
    """Return a number that two requests share only if their bodies, tokenizer `seed` and extra keys are equal."""
    return hash((path, parsed.digest, parsed.size_bytes, seed, keys.seed))


def turns(path: str, fields: BodyFields) -> Any:
    """Return the content of a chat in any of its APIs, or of a completion; None or empty if there is no prompt."""
    if path == RESPONSES_PATH:
        return [fields.input] if isinstance(fields.input, str) else fields.input
    return fields.prompt if path == COMPLETIONS_PATH else fields.messages


def text_chars(path: str, fields: BodyFields) -> int:
    """Return a lower bound of the characters in a chat: its plain text."""
    found = turns(path, fields)
    return sum(map(_text_chars, found)) if isinstance(found, list) else 0


def _text_chars(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return sum(len(text) for text in texts if isinstance(text, str))


def render_chat(path: str, fields: BodyFields, renderer: ChatRenderer) -> str:
    """Return the prompt text of a chat in any of its APIs.

    Raises:
        Unrenderable: the error gives the reason.
    """
    if path == MESSAGES_PATH:
        return renderer.render_messages(api_body(path, fields))
    if path == RESPONSES_PATH:
        return renderer.render_responses(api_body(path, fields))
    return renderer.render(api_body(path, fields))


def api_body(path: str, fields: BodyFields) -> dict[str, Any]:
    body = {name: value for name in _PASSED_ON[path] if (value := getattr(fields, name)) is not None}
    if path == CHAT_PATH:
        for name in ("add_generation_prompt", "continue_final_message"):
            flag = as_bool(getattr(fields, name))
            if flag is not None:
                body[name] = flag
    return body


def adds_special_tokens(path: str, fields: BodyFields) -> bool:
    """Return whether the tokenizer adds its own tokens (mostly a BOS): the default of completions and Responses."""
    if path != COMPLETIONS_PATH and gives_token_ids(fields.chat_template_kwargs):
        return False
    if path in (MESSAGES_PATH, RESPONSES_PATH):
        return path == RESPONSES_PATH
    prompt_request = as_bool(fields.add_special_tokens)
    return prompt_request if prompt_request is not None else path != CHAT_PATH


def completion_prompts(fields: BodyFields) -> tuple[list[str], list[array[int]]]:
    """Return the prompts of a completions body: texts, or else lists of token ids.

    Raises:
        Unrenderable: it has neither, or embeddings.
    """
    if fields.prompt_embeds is not None:
        raise Unrenderable("the request sends embeddings")
    prompt = fields.prompt
    if isinstance(prompt, str):
        return [prompt], []
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            return prompt, []
        return [], [_ids(item) for item in (prompt if isinstance(prompt[0], list) else [prompt])]
    raise Unrenderable("the body has no prompt", refused=True)


def reused_ids(path: str, fields: BodyFields) -> array[int] | None:
    """Return the ids in ``kv_transfer_params.prompt_token_ids``, which vLLM runs instead of rendering.

    vLLM still renders if it has to echo the messages, or if they contain media.
    """
    params = fields.kv_transfer_params
    ids = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if not ids or (path == CHAT_PATH and as_bool(fields.echo)) or not _all_text(turns(path, fields)):
        return None
    return _ids(ids)


def _all_text(messages: Any) -> bool:
    if not isinstance(messages, list):
        return True
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return all(_is_text(part) for content in contents if isinstance(content, list) for part in content)


def _is_text(part: Any) -> bool:
    if not isinstance(part, dict) or part.get("type") in _TEXT_PARTS:
        return not isinstance(part, dict) or "image_url" not in part
    return part.get("type") == "tool_result" and _all_text([part])


def _ids(value: Any) -> array[int]:
    try:
        return array("I", value)
    except (TypeError, OverflowError):
        return _converted_ids(value)


def _converted_ids(value: Any) -> array[int]:
    """Return the ids that pydantic makes of whole floats and flags."""
    whole = isinstance(value, list) and all(isinstance(item, (int, float)) for item in value)
    ids = [as_int(item) for item in value] if whole else [None]
    try:
        return array("I", [item for item in ids if item is not None] if None not in ids else [-1])
    except OverflowError:
        raise Unrenderable("not a list of token ids", refused=True) from None


@dataclass(frozen=True, slots=True)
class Truncation:
    """How vLLM truncates a prompt to `tokens` tokens: it keeps the last ones, or the first ones.

    With `framed_first`, the tokenizer's own first tokens are cut like all others; otherwise they stay. With `to_fit`,
    `tokens` is the space in the smallest context window, and each worker truncates a longer prompt in its own way.
    """

    tokens: int
    keeps_start: bool = False
    framed_first: bool = True
    to_fit: bool = False

    def shortened(self, ids: array[int], frame: int) -> array[int]:
        """Return the rest of a prompt's `ids`, of which the first `frame` are the tokenizer's own.

        Raises:
            Unrenderable: `to_fit`, and the prompt is longer.
        """
        if len(ids) <= self.tokens:
            return ids
        if self.to_fit:
            raise Unrenderable("the prompt is longer than the context window and is to be truncated")
        if self.keeps_start:
            return ids[: self.tokens]
        kept = 0 if self.framed_first else frame
        if kept >= self.tokens:
            raise Unrenderable("the prompt is truncated to nothing", refused=True)
        return ids[:kept] + ids[len(ids) - (self.tokens - kept) :]


def truncation(path: str, fields: BodyFields, context_tokens: int | None) -> Truncation | None:
    """Return the request's truncation; `context_tokens` is the smallest window among the model's workers.

    Raises:
        Unrenderable: a wrong value, or a truncation to the context window while that is not known.
    """
    prompt_request = fields.truncate_prompt_tokens if path in (CHAT_PATH, COMPLETIONS_PATH) else None
    tokens = -1 if path == RESPONSES_PATH and fields.truncation != "disabled" else as_int(prompt_request)
    if tokens is None and prompt_request is None:
        return None
    if tokens is None or tokens < -1 or tokens == 0:
        raise Unrenderable("truncate_prompt_tokens is not a length", refused=True)
    if tokens > 0:
        side = fields.truncation_side
        return Truncation(tokens, side == "right", framed_first=side is not None)
    if context_tokens is None:
        raise Unrenderable("the request truncates its prompt to a context window that is not known")
    return Truncation(context_tokens - 1, to_fit=True)
