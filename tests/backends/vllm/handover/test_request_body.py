import json

import pytest

from backends.vllm.handover import request_body
from backends.vllm.handover.answer_apis import ANSWER_APIS, COMPLETIONS, MESSAGES, RESPONSES
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.request_body import decode_body
from router.tokenization.body.parsed_body import PROMPT_PATHS

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": 'häh \u2028 "q"'}],
    "max_tokens": 500,
    "max_completion_tokens": 400,
    "min_tokens": 5,
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop": ["x"],
    "stop_token_ids": [7],
    "logprobs": True,
    "top_logprobs": 2,
    "n": 1,
    "tools": [{"type": "function"}],
    "chat_template_kwargs": {"a": 1},
    "cache_salt": "s",
    "seed": 3,
}


MESSAGE = {
    "model": "m",
    "system": "be kind",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 500,
    "stop_sequences": ["x"],
    "thinking": {"type": "enabled", "budget_tokens": 100},
    "tool_choice": {"type": "auto"},
    "tools": [{"name": "a", "input_schema": {}}],
    "stream": True,
}
RESPONSE = {
    "model": "m",
    "input": "hi",
    "instructions": "be kind",
    "tools": [{"type": "function", "name": "a"}],
    "max_output_tokens": 50,
    "store": True,
    "stream": True,
    "truncation": "disabled",
}


def encoded(**fields):
    return json.dumps(fields).encode()


def split(body, api=COMPLETIONS, connector="nixl_pull"):
    return request_body.split(body, api, CONNECTORS[connector])


def prefill_body(members, params, api=COMPLETIONS, *, ends_by_length):
    return request_body.prefill_body(members, params, api, ends_by_length=ends_by_length)


def test_the_prefill_request_asks_for_one_token_in_one_piece():
    made = json.loads(prefill_body(split(encoded(**CHAT)), {"do_remote_decode": True}, ends_by_length=False))
    for name in ("model", "messages", "tools", "chat_template_kwargs", "cache_salt", "seed", "n"):
        assert made.pop(name) == CHAT[name]
    assert made == {
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "return_token_ids": True,
        "kv_transfer_params": {"do_remote_decode": True},
    }


def test_a_prefill_that_must_end_by_length_ignores_the_end_of_the_sequence():
    made = json.loads(prefill_body(split(encoded(prompt="a")), None, ends_by_length=True))
    assert made == {"prompt": "a", "stream": False, "max_tokens": 1, "return_token_ids": True, "ignore_eos": True}


def test_the_decode_request_is_the_clients_with_parameters():
    members = split(encoded(**CHAT))
    assert json.loads(decode_body(members, {"a": [1]})) == CHAT | {"kv_transfer_params": {"a": [1]}}
    assert json.loads(decode_body(members, None)) == CHAT


def test_values_keep_their_bytes():
    raw = b' { "prompt" : "\\u00e4" , "temperature":1.0E0, "x":[ 1 ,2], "x":{"a":1} } '
    assert decode_body(split(raw), None) == b'{"prompt":"\\u00e4","temperature":1.0E0,"x":{"a":1}}'


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"n": 2}, "n is not 1"),
        ({"best_of": 3}, "best_of is not 1"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt_embeds": "a"}, "prompt_embeds"),
        ({"kv_transfer_params": {"prompt_token_ids": [1]}}, "kv_transfer_params"),
        ({"ec_transfer_params": {}}, "ec_transfer_params"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"prompt": ["a", "b"]}, "several prompts"),
        ({"prompt": [[1], [2]]}, "several prompts"),
    ],
)
def test_a_request_that_needs_one_worker_is_not_split(fields, why):
    with pytest.raises(HandoverError, match=why):
        split(encoded(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1}, {"n": None}, {"echo": False}, {"prompt_logprobs": None}, {"kv_transfer_params": None},
        {"tool_choice": "auto"}, {"prompt": [1, 2]}, {"prompt": "a"}, {},
    ],
)  # fmt: skip
def test_a_request_that_two_workers_can_share_is_split(fields):
    assert set(split(encoded(**fields))) == set(fields)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"a":NaN}', b"\xff\xfe{}", b"1"])
def test_a_body_that_is_no_plain_object_is_not_split(raw):
    with pytest.raises(HandoverError, match="plain JSON object"):
        split(raw)


def test_a_message_and_a_response_are_prefilled_with_one_token_and_stored_nowhere():
    made = json.loads(prefill_body(split(encoded(**MESSAGE), MESSAGES), {"a": 1}, MESSAGES, ends_by_length=False))
    kept = {name: value for name, value in MESSAGE.items() if name != "stop_sequences"}
    assert made == kept | {"max_tokens": 1, "stream": False, "kv_transfer_params": {"a": 1}}
    made = json.loads(prefill_body(split(encoded(**RESPONSE), RESPONSES), None, RESPONSES, ends_by_length=True))
    assert made == RESPONSE | {
        "max_output_tokens": 1, "stream": False, "store": False, "enable_response_messages": True, "ignore_eos": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("api", "fields", "why"),
    [
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "a"}}, "tool_choice"),
        (MESSAGES, {"tool_choice": "auto"}, "tool_choice has another form"),
        (MESSAGES, {"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"truncation": "auto"}, "truncation"),
        (RESPONSES, {"truncation": None}, "truncation"),
        (RESPONSES, {"tools": [{"type": "function"}, {"type": "web_search_preview"}]}, "runs a tool"),
        (RESPONSES, {"tools": {"a": 1}}, "tools has another form"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_message_or_response_that_needs_one_worker_is_not_split(api, fields, why):
    with pytest.raises(HandoverError, match=why):
        split(encoded(**fields), api)


def test_a_message_is_not_split_where_its_prefill_cannot_be_marked_or_ended():
    with pytest.raises(HandoverError, match="thinking"):
        split(encoded(**MESSAGE), MESSAGES, "shared_store")
    with pytest.raises(HandoverError, match="length"):
        split(encoded(model="m"), MESSAGES, "mooncake")
    assert split(encoded(thinking=None), MESSAGES, "shared_store")


def test_every_path_with_a_prompt_has_its_api():
    assert set(ANSWER_APIS) == PROMPT_PATHS
