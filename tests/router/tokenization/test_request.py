import json
from array import array

import pytest

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from router.tokenization.request import Truncation, adds_special_tokens, api_body, reused_ids, truncation, turns


def fields(path: str, **body: object) -> BodyFields:
    return parse(path, json.dumps(body).encode()).decoded()


def test_each_api_reads_its_own_turns() -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "prompt": "b", "input": "c"}
    read = fields("/v1/embeddings", **body)
    assert [turns(path, read) for path in (CHAT_PATH, MESSAGES_PATH, COMPLETIONS_PATH, RESPONSES_PATH)] == [
        body["messages"], body["messages"], "b", ["c"]
    ]  # fmt: skip


def test_fields_of_other_apis_are_ignored() -> None:
    everything = {
        "messages": [{"role": "user", "content": "a"}], "system": "S", "input": "c", "instructions": "I", "tools": [],
        "thinking": {}, "output_config": {}, "reasoning": {}, "reasoning_effort": "low", "documents": [],
        "add_generation_prompt": "false", "continue_final_message": "odd", "chat_template_kwargs": {}, "zzz": 1,
        "previous_response_id": "r", "mm_processor_kwargs": {}, "chat_template": "t",
    }  # fmt: skip
    expected = {
        CHAT_PATH: {"messages", "tools", "reasoning_effort", "documents", "add_generation_prompt",
                    "chat_template_kwargs", "mm_processor_kwargs", "chat_template"},
        MESSAGES_PATH: {"messages", "tools", "system", "thinking", "output_config", "chat_template_kwargs"},
        RESPONSES_PATH: {"input", "instructions", "tools", "reasoning", "chat_template_kwargs", "previous_response_id",
                         "mm_processor_kwargs"},
    }  # fmt: skip
    for path, names in expected.items():
        assert set(api_body(path, fields("/other", **everything))) == names
    assert api_body(CHAT_PATH, fields(CHAT_PATH, add_generation_prompt="false"))["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("path", "body", "adds"),
    [
        (CHAT_PATH, {}, False),
        (CHAT_PATH, {"add_special_tokens": "true"}, True),
        (CHAT_PATH, {"add_special_tokens": True, "chat_template_kwargs": {"tokenize": True}}, False),
        (CHAT_PATH, {"add_special_tokens": True, "chat_template_kwargs": {"tokenize": False}}, True),
        (COMPLETIONS_PATH, {}, True),
        (COMPLETIONS_PATH, {"add_special_tokens": False}, False),
        (COMPLETIONS_PATH, {"chat_template_kwargs": {"tokenize": True}}, True),
        (MESSAGES_PATH, {"add_special_tokens": True}, False),
        (RESPONSES_PATH, {"add_special_tokens": False}, True),
        (RESPONSES_PATH, {"chat_template_kwargs": {"tokenize": 1}}, False),
        (RESPONSES_PATH, {"chat_template_kwargs": "odd"}, True),
    ],
)
def test_the_tokenizers_first_tokens_depend_on_the_api(path: str, body: dict, adds: bool) -> None:
    assert adds_special_tokens(path, fields(path, **body)) is adds


@pytest.mark.parametrize(
    ("path", "body", "used"),
    [
        (CHAT_PATH, {"messages": [{"role": "user", "content": "a"}, "odd", {"role": "user"}]}, True),
        (CHAT_PATH, {"messages": [], "echo": True}, False),
        (CHAT_PATH, {"messages": [{"content": [{"type": "text", "text": "a"}, "b"]}]}, True),
        (CHAT_PATH, {"messages": [{"content": [{"type": "input_audio"}]}]}, False),
        (CHAT_PATH, {"messages": [{"content": [{"type": "text", "text": "a", "image_url": None}]}]}, False),
        (MESSAGES_PATH, {"messages": [{"content": [{"type": "tool_use"}, {"type": "thinking"}]}]}, True),
        (MESSAGES_PATH, {"messages": [{"content": [{"type": "tool_result", "content": "x"}]}]}, True),
        (MESSAGES_PATH, {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]}, False),
        (RESPONSES_PATH, {"input": "a"}, True),
        (RESPONSES_PATH, {"input": [{"content": [{"type": "input_image"}]}]}, False),
    ],
)
def test_forwarded_ids_are_run_unless_rendering_is_needed(path: str, body: dict, used: bool) -> None:
    read = fields(path, **body, kv_transfer_params={"prompt_token_ids": [4, 5]})
    assert reused_ids(path, read) == (array("I", [4, 5]) if used else None)
    for params in (None, {}, {"prompt_token_ids": None}, "odd"):
        assert reused_ids(path, fields(path, **body, kv_transfer_params=params)) is None


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ({}, None),
        ({"truncation_side": "left"}, None),
        ({"truncate_prompt_tokens": 9}, Truncation(9, framed_first=False)),
        ({"truncate_prompt_tokens": "9", "truncation_side": "left"}, Truncation(9)),
        ({"truncate_prompt_tokens": 9, "truncation_side": "right"}, Truncation(9, keeps_start=True)),
        ({"truncate_prompt_tokens": -1}, Truncation(99, to_fit=True)),
    ],
)
def test_truncation(body: dict, made: Truncation | None) -> None:
    for path in (CHAT_PATH, COMPLETIONS_PATH):
        assert truncation(path, fields(path, **body), 100) == made
    assert truncation(MESSAGES_PATH, fields(MESSAGES_PATH, **body, truncation="auto"), 100) is None
    assert truncation(RESPONSES_PATH, fields(RESPONSES_PATH, **body), 100) is None


def test_responses_truncate_unless_disabled() -> None:
    for body in ({"truncation": "auto"}, {"truncation": None}):
        assert truncation(RESPONSES_PATH, fields(RESPONSES_PATH, **body), 100) == Truncation(99, to_fit=True)
    assert truncation(RESPONSES_PATH, fields(RESPONSES_PATH, truncation="disabled"), None) is None
    with pytest.raises(Unrenderable, match="not known"):
        truncation(RESPONSES_PATH, fields(RESPONSES_PATH, truncation="auto"), None)


@pytest.mark.parametrize("value", [0, -2, 2.5, "odd", []])
def test_a_wrong_truncation_length_is_refused(value: object) -> None:
    with pytest.raises(Unrenderable):
        truncation(CHAT_PATH, fields(CHAT_PATH, truncate_prompt_tokens=value), 100)


def test_truncation_keeps_the_requested_side() -> None:
    ids = array("I", range(10))
    assert list(Truncation(10).shortened(ids, 1)) == list(range(10))
    assert list(Truncation(4).shortened(ids, 1)) == [6, 7, 8, 9]
    assert list(Truncation(4, keeps_start=True).shortened(ids, 1)) == [0, 1, 2, 3]
    assert list(Truncation(4, framed_first=False).shortened(ids, 1)) == [0, 7, 8, 9]
    assert list(Truncation(4, framed_first=False).shortened(ids, 0)) == [6, 7, 8, 9]
    with pytest.raises(Unrenderable, match="to nothing"):
        Truncation(2, framed_first=False).shortened(ids, 2)
    with pytest.raises(Unrenderable, match="longer than the context window"):
        Truncation(9, to_fit=True).shortened(ids, 0)
