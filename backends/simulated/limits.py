"""Largest length of an answer, and the length at which the simulated model stops by itself."""

from __future__ import annotations

import math
from collections.abc import Callable

from backends.simulated.errors import ApiError
from backends.simulated.request import ChatBody, CompletionBody

COMPLETION_MAX_TOKENS = 16
"""OpenAI's and vLLM's default for /v1/completions."""


def answer_tokens(prompt_tokens: int, body: ChatBody | CompletionBody, max_model_len: int, default: int) -> int:
    """Return the largest number of tokens for the answer to one prompt.

    Raises:
        ApiError: 400, prompt and answer do not fit into `max_model_len`.
    """
    chat = isinstance(body, ChatBody)
    prompt_field = "messages" if chat else "prompt"
    room = max_model_len - prompt_tokens
    if prompt_tokens < 1:
        raise ApiError("The prompt is empty.", param=prompt_field)
    if room < 1:
        raise ApiError(
            f"The prompt has {prompt_tokens} tokens; this model's maximum context length is {max_model_len} tokens, "
            "of which at least one is for the answer.",
            param=prompt_field,
        )
    wanted = _wanted_tokens(body)
    if wanted is not None and wanted > room:
        raise ApiError(
            f"max_tokens is {wanted}, but beside {prompt_tokens} prompt tokens only {room} fit into this model's "
            f"maximum context length of {max_model_len} tokens.",
            param="max_tokens",
        )
    limit = min(room, default) if wanted is None else wanted
    if (body.min_tokens or 0) > limit:
        raise ApiError(f"min_tokens is {body.min_tokens}, above max_tokens = {limit}.", param="min_tokens")
    return limit


def _wanted_tokens(body: ChatBody | CompletionBody) -> int | None:
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return body.max_completion_tokens
    return body.max_tokens


def draw_stop(body: ChatBody | CompletionBody, chance: float, draw: Callable[[], float]) -> int | None:
    """Draw the number of tokens after which the model stops, if each token ends the answer with `chance`; None =
    never.
    """
    if body.ignore_eos or chance <= 0:
        return None
    drawn = 1 if chance >= 1 else 1 + int(math.log(1.0 - draw()) / math.log(1.0 - chance))
    return max(drawn, body.min_tokens or 1)
