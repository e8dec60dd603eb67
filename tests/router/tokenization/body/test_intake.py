"""A body that vLLM accepts is never refused; a wrong type is refused in OpenAI's shape."""

import json

import pytest
from xxhash import xxh3_128_intdigest

from router.errors import ErrorKind, RequestError
from router.tokenization.body.intake import READ_AT_ONCE_BYTES, WHOLE_BYTES, parse
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH, ParsedBody

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def read(body: object, path: str = CHAT_PATH):
    return parse(path, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_the_gateways_fields_are_read() -> None:
    parsed = read({
        **CHAT, "stream": True, "max_tokens": 5, "max_completion_tokens": 7,
        "session_id": "s", "priority": -2, "cache_salt": "pepper", "unknown": {"deep": [1, {"x": None}]},
    })  # fmt: skip
    assert (parsed.model, parsed.stream, parsed.max_tokens) == ("m", True, 7)
    assert (parsed.session_id, parsed.priority, parsed.cache_salt) == ("s", -2, "pepper")
    assert parsed.fields.messages == CHAT["messages"]


def test_absent_fields_have_defaults() -> None:
    parsed = read(CHAT)
    assert (parsed.stream, parsed.max_tokens, parsed.session_id, parsed.priority) == (False, None, None, 0)


@pytest.mark.parametrize(
    ("field", "value", "attribute", "expected"),
    [
        ("stream", "true", "stream", True),
        ("stream", 1, "stream", True),
        ("stream", 0.0, "stream", False),
        ("stream", "off", "stream", False),
        ("stream", None, "stream", False),
        ("max_tokens", "12", "max_tokens", 12),
        ("max_tokens", 12.0, "max_tokens", 12),
        ("max_tokens", 12.5, "max_tokens", None),
        ("max_tokens", 10**40, "max_tokens", 10**40),
        ("priority", "3", "priority", 3),
        ("model", None, "model", None),
        ("cache_salt", 5, "cache_salt", None),
        ("seed", 10**30, "model", "m"),
    ],
)
def test_fields_are_converted_as_pydantic_does(field: str, value: object, attribute: str, expected: object) -> None:
    assert getattr(read({**CHAT, field: value}), attribute) == expected


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a": 1,}', b"\xff\xfe\xfd", b'{"a": ' + b"[" * 10_000, b'{"model": "m"} x']
)
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read(body)
    assert caught.value.kind is ErrorKind.INVALID_JSON


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT_PATH, {"model": 5}, "model"),
        (CHAT_PATH, {"stream": "maybe"}, "stream"),
        (CHAT_PATH, {"stream": []}, "stream"),
        (CHAT_PATH, {"messages": "hi"}, "messages"),
        (CHAT_PATH, {"messages": {"role": "user"}}, "messages"),
        (COMPLETIONS_PATH, {"prompt": {"a": 1}}, "prompt"),
        (COMPLETIONS_PATH, {"prompt": 5}, "prompt"),
        (CHAT_PATH, [1], None),
        (MESSAGES_PATH, {"messages": "hi"}, "messages"),
        (MESSAGES_PATH, {"stream": "maybe"}, "stream"),
        (RESPONSES_PATH, {"input": {"role": "user"}}, "input"),
        (RESPONSES_PATH, {"input": 5}, "input"),
        (RESPONSES_PATH, {"model": []}, "model"),
    ],
)
def test_a_field_of_a_wrong_type_is_refused(path: str, body: object, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        read(body, path)
    assert caught.value.kind is ErrorKind.INVALID_BODY
    assert caught.value.param == param


LARGE = b" " * WHOLE_BYTES
VERY_LARGE = b" " * READ_AT_ONCE_BYTES


@pytest.mark.parametrize("padding", [b"", LARGE, VERY_LARGE], ids=["small", "large", "very large"])
@pytest.mark.parametrize(
    "body",
    [
        rb'{"model": "m", "messages": [{"role": "user", "content": "\ud800"}]}',
        rb'{"model": "m", "messages": [], "metadata": {"\uDFFF": 1}}',
        rb'{"model": "m", "messages": [], "\uDFFF": 1}',
        b'{"model": "m", "messages": [], "unknown": "\xed\xa0\x80"}',
        rb'{"model": "m", "messages": [], "session_id": "\ud800", "cache_salt": "\ud800"}',
    ],
)
def test_a_lone_surrogate_is_left_to_the_worker(body: bytes, padding: bytes) -> None:
    for path in (CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH, "/v1/embeddings"):
        parsed = parse(path, body + padding)
        assert (parsed.model, parsed.session_id, parsed.cache_salt) == ("m", None, None)


@pytest.mark.parametrize("padding", [b"", LARGE, VERY_LARGE], ids=["small", "large", "very large"])
@pytest.mark.parametrize("name", [rb"\ud800 ", b"\xed\xa0\x80"])
def test_a_model_with_a_lone_surrogate_is_refused_where_it_counts(name: bytes, padding: bytes) -> None:
    body = b'{"model": "%b"}' % name + padding
    with pytest.raises(RequestError) as caught:
        parse(CHAT_PATH, body)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.INVALID_BODY, "model")
    assert parse("/v1/embeddings", body).model is None


def test_surrogate_pairs_and_escaped_backslashes_are_accepted() -> None:
    assert read(rb'{"model": "m", "messages": ["\ud83d\ude00", "\\ud800"]}').model == "m"
    hangul = "\ud7a3\ud7ff\ue000"
    assert read(json.dumps({"model": hangul}, ensure_ascii=False).encode()).model == hangul


def test_the_prompt_of_a_large_body_is_not_decoded() -> None:
    body = json.dumps({**CHAT, "filler": "x" * WHOLE_BYTES, "tools": [1], "vllm_xargs": {"a": 1}}).encode()
    parsed = read(body)
    assert (parsed.whole, parsed.fields.messages, parsed.fields.tools) == (False, None, None)
    assert (parsed.model, parsed.has_prompt, parsed.has_tools) == ("m", True, True)
    assert parsed.fields.vllm_xargs == {"a": 1}
    assert parsed.decoded().messages == CHAT["messages"]
    parsed.release()
    assert parsed.body is None


def test_a_small_body_is_decoded_once_and_can_be_released() -> None:
    parsed = read(CHAT)
    assert parsed.whole and parsed.decoded() is parsed.fields and parsed.fields.messages == CHAT["messages"]
    parsed.drop_prompt()
    assert parsed.fields.messages is None and parsed.fields.model == "m"
    assert parsed.decoded().messages == CHAT["messages"]


def test_release_keeps_the_fields_for_rewrites_and_drops_the_prompt() -> None:
    parsed = read({**CHAT, "vllm_xargs": {"a": 1}, "stream_options": {"b": 2}, "tools": [{}]})
    parsed.release()
    assert parsed.body is None and not parsed.whole
    assert parsed.fields.messages is None and parsed.fields.tools is None
    assert (parsed.fields.vllm_xargs, parsed.fields.stream_options) == ({"a": 1}, {"b": 2})


@pytest.mark.parametrize("padding", [b"", LARGE, VERY_LARGE], ids=["small", "large", "very large"])
@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({}, None),
        ({"kv_transfer_params": None, "ec_transfer_params": None}, None),
        ({"kv_transfer_params": {}}, None),
        ({"kv_transfer_params": {"prompt_token_ids": [1, 2]}}, None),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"kv_transfer_params": {"prompt_token_ids": [1], "do_remote_decode": False}}, "kv_transfer_params"),
        ({"kv_transfer_params": "text"}, "kv_transfer_params"),
        ({"kv_transfer_params": False}, "kv_transfer_params"),
        ({"ec_transfer_params": {"ec_items": []}}, "ec_transfer_params"),
        ({"ec_transfer_params": {}}, "ec_transfer_params"),
        ({"ec_transfer_params": 0}, "ec_transfer_params"),
        ({"vllm_xargs": {"session_id": "s", "kv_transfer_params": None}}, None),
        ({"vllm_xargs": {"kv_transfer_params": "text"}}, "vllm_xargs.kv_transfer_params"),
        ({"vllm_xargs": {"a": "x" * 20_000, "ec_transfer_params": [1]}}, "vllm_xargs.ec_transfer_params"),
        ({"vllm_xargs": "kv_transfer_params"}, None),
        ({"sampling_params": {"max_tokens": 1, "extra_args": {"a": 1}}}, None),
        ({"sampling_params": {"extra_args": None}}, None),
        ({"sampling_params": []}, None),
        (
            {"sampling_params": {"extra_args": {"kv_transfer_params": {}}}},
            "sampling_params.extra_args.kv_transfer_params",
        ),
    ],
)
def test_transfer_parameters_are_seen_in_every_body(params: dict, named: str | None, padding: bytes) -> None:
    body = json.dumps({"model": "m", **params}).encode()
    for path in (CHAT_PATH, "/v1/chat/completions/batch", "/v1/embeddings"):
        assert parse(path, body + padding).transfer_field == named
        assert parse(path, padding + body).transfer_field == named
        assert parse(path, body.replace(b"transfer", b"tr\\u0061nsfer") + padding).transfer_field == named


def test_a_large_body_with_fields_that_cannot_be_read_is_refused() -> None:
    for body, kind in (
        (b'{"model": "m"', ErrorKind.INVALID_JSON),
        (b'{"a": ' + b"[" * 5_000, ErrorKind.INVALID_JSON),
        (b"[1, 2]", ErrorKind.INVALID_BODY),
        (b'{"priority": "%s5"}' % (b" " * 20_000), ErrorKind.INVALID_BODY),
        (b'{"model": 5}', ErrorKind.INVALID_BODY),
        (b'{"model": [1e308]}', ErrorKind.INVALID_BODY),
        (b'{"messages": {}}', ErrorKind.INVALID_BODY),
    ):
        for padding in (LARGE, VERY_LARGE):
            with pytest.raises(RequestError) as caught:
                read(padding + body)
            assert caught.value.kind is kind, body[:40]


def test_json_that_is_no_object_has_no_fields() -> None:
    for padding in (b"", LARGE, VERY_LARGE):
        for other in (b"[1, 2]", b'"text"', b"5", b"null", b"-1e5"):
            assert parse("/pooling", b" " + other + padding).model is None


@pytest.mark.source_only
def test_a_very_large_body_reads_like_a_small_one() -> None:
    given = {**EVERYTHING, "tools": [1], "stream_options": {"include_usage": True}, "vllm_xargs": {"a": 1}}
    small = read(given)
    for padding in (LARGE, VERY_LARGE):
        large = read(json.dumps(given).encode() + padding)
        for name in ParsedBody.__slots__:
            if name not in ("body", "decoded_part", "digest", "fields", "size_bytes", "survey"):
                assert getattr(large, name) == getattr(small, name), name
        assert large.decoded() == small.fields
        assert large.digest == xxh3_128_intdigest(json.dumps(given).encode() + padding)


def test_other_paths_are_not_judged() -> None:
    assert parse("/v1/responses/resp_1/cancel", b"").model is None
    assert parse("/cohere/v2/chat", b'{"model": "m", "prompt": {"id": "p"}, "stream": "odd"}').model == "m"
    assert parse("/v1/embeddings", b'{"model": 5, "input": []}').model is None
    assert parse("/pooling", b"[1, 2]").model is None


@pytest.mark.parametrize(
    ("path", "body", "reads_cache"),
    [
        ("/v1/chat/completions", {"messages": []}, True),
        ("/v1/chat/completions", {"messages": [], "logprobs": True, "top_logprobs": 3}, True),
        ("/v1/chat/completions", {"messages": [], "prompt_logprobs": 0}, False),
        ("/v1/chat/completions", {"messages": [], "echo": True}, False),
        ("/v1/completions", {"prompt": "x", "echo": True}, True),
        ("/v1/completions", {"prompt": "x", "echo": True, "logprobs": 0}, False),
        ("/v1/completions", {"prompt": "x", "logprobs": 1}, True),
    ],
)
def test_prompt_log_probabilities_skip_the_cache(path: str, body: dict[str, object], reads_cache: bool) -> None:
    assert parse(path, json.dumps(body).encode()).reads_cache is reads_cache


EVERYTHING = {
    "model": "m", "messages": [], "max_tokens": 1, "max_completion_tokens": 2, "max_output_tokens": 3,
    "session_id": "s", "priority": 4, "cache_salt": "c", "n": 5, "prompt_logprobs": 1, "previous_response_id": "r",
    "stream": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "read_as"),
    [
        (CHAT_PATH, (2, "s", 4, 5, False, None)),
        (COMPLETIONS_PATH, (1, "s", 4, 5, False, None)),
        (MESSAGES_PATH, (1, None, 0, 1, True, None)),
        (RESPONSES_PATH, (3, "s", 4, 1, True, "r")),
    ],
)
def test_each_api_has_its_own_fields(path: str, read_as: tuple) -> None:
    parsed = parse(path, json.dumps(EVERYTHING).encode())
    assert (parsed.model, parsed.stream, parsed.cache_salt) == ("m", True, "c")
    assert read_as == (
        parsed.max_tokens, parsed.session_id, parsed.priority, parsed.answers, parsed.reads_cache,
        parsed.previous_response_id,
    )  # fmt: skip
