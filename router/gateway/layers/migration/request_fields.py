"""The fields that decide whether a stream can be continued, as msgspec decodes them.

Kept apart from compiled modules for the reason that `router.requests.answers.json_structs` gives.
"""

from __future__ import annotations

from typing import Any

import msgspec

_ABSENT = msgspec.Raw()


class TrackedFields(msgspec.Struct):
    """A request as its worker gets it. The names are those of vLLM 0.33; an absent field is None or empty."""

    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    n: Any = None
    best_of: Any = None
    use_beam_search: Any = None
    stop: Any = None
    include_stop_str_in_output: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structural_tag: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_detection: Any = None
    echo: Any = None
    prompt_logprobs: Any = None
    prompt_embeds: Any = None
    include_reasoning: Any = None
    truncate_prompt_tokens: Any = None
    kv_transfer_params: Any = None
    logprobs: Any = None
    return_token_ids: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    min_tokens: Any = None
    cache_salt: Any = None
    stream_options: Any = None


class MessageContent(msgspec.Struct):
    content: Any = None


class MessageCalls(msgspec.Struct):
    """A message of a chat, of which the tool calls are counted."""

    role: Any = None
    tool_calls: list[msgspec.Raw] | None = None


class TextDelta(msgspec.Struct):
    text: Any = None


class TextEvent(msgspec.Struct):
    """An event of a completion, of which the text is read."""

    choices: list[TextDelta] = []
