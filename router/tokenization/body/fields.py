"""The fields of a request body that the router reads, as msgspec decodes them.

Kept apart from compiled modules for the reason that `router.requests.answers.json_structs` gives.
"""

from __future__ import annotations

from typing import Any

import msgspec


class BodyFields(msgspec.Struct):
    """The raw fields. An absent field is None, like a null one (except `truncation`)."""

    model: Any = None
    stream: Any = None
    stream_options: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    session_id: Any = None
    priority: Any = None
    service_tier: Any = None
    cache_salt: Any = None
    messages: Any = None
    prompt: Any = None
    system: Any = None
    input: Any = None
    instructions: Any = None
    previous_response_id: Any = None
    previous_input_messages: Any = None
    tools: Any = None
    documents: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None
    reasoning: Any = None
    thinking: Any = None
    output_config: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    add_special_tokens: Any = None
    truncate_prompt_tokens: Any = None
    truncation_side: Any = None
    truncation: Any = "disabled"
    mm_processor_kwargs: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    sampling_params: Any = None
    vllm_xargs: Any = None
    prompt_embeds: Any = None
    n: Any = None
    echo: Any = None
    logprobs: Any = None
    prompt_logprobs: Any = None


PROMPT_FIELDS = (
    "messages", "prompt", "system", "input", "instructions", "previous_input_messages", "tools", "documents",
    "chat_template", "chat_template_kwargs", "reasoning", "thinking", "output_config", "mm_processor_kwargs",
    "kv_transfer_params", "ec_transfer_params", "sampling_params", "prompt_embeds",
)  # fmt: skip
"""Fields of any size. In a large body they are decoded only to identify the prompt."""

SpannedFields = msgspec.defstruct(
    "SpannedFields", [(name, msgspec.Raw, msgspec.Raw()) for name in BodyFields.__struct_fields__]
)
"""The same fields, each as the bytes of its JSON value, so that no object is made for the contents."""


class MessagesSpan(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()


class ReusedTokens(msgspec.Struct, forbid_unknown_fields=True):
    """The one member of `kv_transfer_params` that is not for a connector."""

    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class SamplingParams(msgspec.Struct):
    """The place in a token-in request (`/inference/v1/generate`) for arguments that vLLM passes on."""

    extra_args: msgspec.Raw = msgspec.Raw()


class EngineArguments(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    ec_transfer_params: msgspec.Raw = msgspec.Raw()
