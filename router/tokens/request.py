"""One request's prompt, in the forms that the identity works with."""

from __future__ import annotations

from array import array
from typing import Any

from backends.vllm.unrenderable import Unrenderable
from router.tokens.hashing import CacheKeys
from router.tokens.intake import CHAT_PATH, BodyFields, ParsedBody, as_bool

_PASSED_ON = (
    "messages", "tools", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort",
    "truncate_prompt_tokens", "mm_processor_kwargs",
)  # fmt: skip


def request_key(path: str, parsed: ParsedBody, seed: int, keys: CacheKeys) -> int:
    """A number that two requests share only if their bodies, tokenizer `seed` and extra keys are the same."""
    return hash((path, parsed.digest, parsed.size_bytes, seed, keys.seed))


def chat_body(fields: BodyFields) -> dict[str, Any]:
    """The body as `ChatRenderer.render` takes it."""
    body = {name: value for name in _PASSED_ON if (value := getattr(fields, name)) is not None}
    for name in ("add_generation_prompt", "continue_final_message"):
        flag = as_bool(getattr(fields, name))
        if flag is not None:
            body[name] = flag
    return body


def adds_special_tokens(path: str, fields: BodyFields) -> bool:
    """Whether the tokenizer's own framing (a BOS, mostly) is asked for: not for chats, yes for completions."""
    asked = as_bool(fields.add_special_tokens)
    return asked if asked is not None else path != CHAT_PATH


def completion_prompts(fields: BodyFields) -> tuple[list[str], list[array[int]]]:
    """The prompts of a completions body: texts, or else lists of token ids.

    Raises:
        Unrenderable: neither, or fields that change them in the worker's own way.
    """
    if fields.truncate_prompt_tokens is not None or fields.prompt_embeds is not None:
        raise Unrenderable("the request truncates its prompt or sends embeddings")
    prompt = fields.prompt
    if isinstance(prompt, str):
        return [prompt], []
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            return prompt, []
        return [], [_ids(item) for item in (prompt if isinstance(prompt[0], list) else [prompt])]
    raise Unrenderable("the body has no prompt", refused=True)


def reused_ids(fields: BodyFields) -> array[int] | None:
    """Ids that ``kv_transfer_params.prompt_token_ids`` tells vLLM to run instead of rendering."""
    params = fields.kv_transfer_params
    ids = params.get("prompt_token_ids") if isinstance(params, dict) else None
    return _ids(ids) if ids else None


def _ids(value: Any) -> array[int]:
    try:
        return array("I", value)
    except (TypeError, OverflowError) as error:
        raise Unrenderable(f"not a list of token ids: {error}", refused=True) from error
