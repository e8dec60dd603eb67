"""Bodies of /v1/chat/completions and /v1/completions, read and checked as vLLM checks them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from backends.foreign_json import read_json
from backends.simulated.errors import ApiError

COMPLETION_MAX_TOKENS = 16
"""OpenAI's and vLLM's default for /v1/completions."""

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
TokenIds = list[Count]
Prompts = str | list[Any]

GIVEN_IDS_PARAM = "kv_transfer_params.prompt_token_ids"
_GIVEN_IDS = "kv_transfer_params['prompt_token_ids']"
_FIELD = re.compile(r"`\$\.(\w+)")
_MEDIA_PARTS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "image", "file", "prompt_embeds"})
_SALT_MAX_CHARS = 128
_SALT_FORBIDDEN = frozenset("@/\\\0")


class StreamOptions(msgspec.Struct, frozen=True):
    """OpenAI's options; ``continuous_usage_stats`` and others are accepted and have no effect."""

    include_usage: bool | None = None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that both paths share. At temperature 0 or with a seed, tokens depend on the ids before them alone; other
    sampling parameters have no effect.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    n: Positive | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Count | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None
    logprobs: bool | int | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    response_format: dict[str, Any] | None = None

    @property
    def given_ids(self) -> TokenIds | None:
        """The prompt's token ids, if the body brings them and nothing in it needs its messages to be rendered.

        Raises `ApiError` 400 for ids that are none.
        """
        ids = (self.kv_transfer_params or {}).get("prompt_token_ids")
        if ids is None or self.renders:
            return None
        if not isinstance(ids, list) or not ids or any(type(each) is not int or each < 0 for each in ids):
            raise ApiError(f"`{_GIVEN_IDS}` must be a non-empty list of non-negative integers.", param=GIVEN_IDS_PARAM)
        return ids

    @property
    def renders(self) -> bool:
        """Whether `given_ids` are passed over without a word, as vLLM does for some bodies."""
        return True

    @property
    def announces_reuse(self) -> bool:
        return self.vllm_xargs is not None and self.vllm_xargs.get("kv_cache_report_mode") == "full"


class ChatBody(_Body, frozen=True, kw_only=True):
    """The fields of /v1/chat/completions beyond those of its template."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Positive | None = None

    @property
    def renders(self) -> bool:
        parts = (part for message in self.messages for part in _parts(message))
        return bool(self.echo) or any(isinstance(part, dict) and part.get("type") in _MEDIA_PARTS for part in parts)


def _parts(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


class CompletionBody(_Body, frozen=True, kw_only=True):
    prompt: Prompts
    best_of: Positive | None = None
    suffix: str | None = None


class TokenizeBody(msgspec.Struct, frozen=True):
    """The fields of /tokenize in its completion form; a body with ``messages`` is the chat form."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class TokenizeChatBody(msgspec.Struct, frozen=True):
    """The fields of /tokenize in its chat form beyond those of the template."""

    messages: list[dict[str, Any]]
    model: str | None = None
    add_special_tokens: bool = False
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True):
    tokens: TokenIds
    model: str | None = None


class LoadAdapterBody(msgspec.Struct, frozen=True):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterBody(msgspec.Struct, frozen=True):
    lora_name: str


Body = TypeVar("Body")


def read_object(raw: bytes, content_type: str) -> dict[str, Any]:
    """Return the body as a JSON object; raises `ApiError` 415 or 400."""
    if content_type.split(";", 1)[0].strip().lower() != "application/json":
        raise ApiError("Content-Type must be application/json.", status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    try:
        body = _as_vllm_reads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise ApiError("The body must be a JSON object.")
    return body


def _as_vllm_reads(raw: bytes) -> Any:
    """Return the value of `raw`. vLLM's parser, Python's, accepts NaN and encodings that the faster one refuses."""
    try:
        return read_json(raw)
    except (ValueError, RecursionError):
        return json.loads(raw)


def read_body(kind: type[Body], body: dict[str, Any]) -> Body:
    """Return the fields of `kind`; raises `ApiError` 400 naming the wrong field."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        field = _FIELD.search(text)
        raise ApiError(f"{text}.", param=field[1] if field else None) from None


def check_supported(body: ChatBody | CompletionBody) -> None:
    """Raise `ApiError` for a request that needs logits, which this model lacks, and for contradictory fields."""
    if (body.n or 1) > 1:
        raise ApiError("This simulated worker answers with one choice per prompt: n must be 1.", param="n")
    _check_echo(body)
    if body.logprobs or body.prompt_logprobs is not None:
        raise ApiError("This simulated worker has no log probabilities.", param="logprobs")
    if body.use_beam_search:
        raise ApiError("This simulated worker does not support beam search.", param="use_beam_search")
    if body.response_format and body.response_format.get("type") != "text":
        raise ApiError("This simulated worker answers in plain words only.", param="response_format")
    if isinstance(body, CompletionBody):
        if (body.best_of or 1) > 1:
            raise ApiError("This simulated worker does not support best_of.", param="best_of")
        if body.suffix:
            raise ApiError("suffix is not supported.", param="suffix")
    if body.stream_options is not None and not body.stream:
        raise ApiError("stream_options needs stream to be true.", param="stream_options")
    _check_salt(body.cache_salt)


def _check_echo(body: ChatBody | CompletionBody) -> None:
    """Raise `ApiError` where an echo would have text: a chat echoes the assistant's last message alone."""
    if not body.echo:
        return
    last = body.messages[-1] if isinstance(body, ChatBody) and body.messages else {}
    if isinstance(body, CompletionBody) or last.get("role") == "assistant":
        raise ApiError("This simulated worker does not support echo.", param="echo")


def _check_salt(salt: str | None) -> None:
    if salt is None:
        return
    if not salt or len(salt) > _SALT_MAX_CHARS or not _SALT_FORBIDDEN.isdisjoint(salt):
        raise ApiError(
            f"cache_salt must be 1 to {_SALT_MAX_CHARS} characters without '@', '/', backslash or NUL.",
            param="cache_salt",
        )


def split_prompts(prompt: Prompts) -> list[str | list[int]]:
    """Return one or several prompts, each text or token ids; raises `ApiError` for anything else, and for none."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(part) for part in prompt}
    if kinds == {str}:
        return list(prompt)
    if kinds == {int}:
        return [_token_ids(prompt)]
    if kinds == {list}:
        return [_token_ids(part) for part in prompt]
    raise ApiError(
        "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids, not empty.",
        param="prompt",
    )


def _token_ids(values: Any) -> list[int]:
    try:
        return msgspec.convert(values, TokenIds)
    except msgspec.ValidationError as error:
        raise ApiError(f"prompt: {error}.", param="prompt") from None


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
        if body.given_ids is not None:
            return room  # vLLM checks lengths where it renders; here it cuts
        raise ApiError(
            f"max_tokens is {wanted}, but beside {prompt_tokens} prompt tokens only {room} fit into this model's "
            f"maximum context length of {max_model_len} tokens.",
            param="max_tokens",
        )
    return min(room, default) if wanted is None else wanted


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
    return 1 if chance >= 1 else 1 + int(math.log(1.0 - draw()) / math.log(1.0 - chance))
