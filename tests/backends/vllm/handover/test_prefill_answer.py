"""The answer of a prefill request, as vLLM 0.33 sends it and as no server should."""

import msgspec
import pytest

from backends.vllm.handover import prefill_answer
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.prefill_answer import read_message_answer, read_prefill_answer, read_response_answer

USAGE = {"prompt_tokens": 4, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}


def body(**fields):
    return msgspec.json.encode({"choices": [{"finish_reason": "length"}], "usage": USAGE} | fields)


def test_a_chat_completion_has_its_ids_at_the_top():
    answer = read_prefill_answer(body(prompt_token_ids=[1, 2, 3, 4], kv_transfer_params={"a": 1}))
    assert answer.prompt_token_ids == [1, 2, 3, 4]
    assert answer.params == {"a": 1}
    assert (answer.finish_reason, answer.prompt_tokens, answer.cached_tokens) == ("length", 4, 2)


def test_a_completion_has_its_ids_in_its_choice():
    choices = [{"finish_reason": "stop", "prompt_token_ids": [5, 6, 7, 8]}]
    answer = read_prefill_answer(body(choices=choices))
    assert (answer.prompt_token_ids, answer.finish_reason, answer.params) == ([5, 6, 7, 8], "stop", None)


def test_ids_of_another_number_than_the_prompts_tokens_are_left_out():
    assert read_prefill_answer(body(prompt_token_ids=[1, 2, 3])).prompt_token_ids is None
    assert read_prefill_answer(body(prompt_token_ids=[1], usage=None)).prompt_token_ids == [1]


def test_counts_and_ids_in_another_form_are_left_out():
    answer = read_prefill_answer(body(prompt_token_ids=["1"], usage={"prompt_tokens": -1}))
    assert (answer.prompt_token_ids, answer.prompt_tokens, answer.cached_tokens) == (None, None, None)
    assert read_prefill_answer(body(choices=[{"finish_reason": 3}])).finish_reason is None


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b"{}", b'{"choices":1}', b'{"choices":[1]}', b"\xff", b"[" * 100_000]
)
def test_another_document_is_refused(raw):
    with pytest.raises(HandoverError, match="not a completion"):
        read_prefill_answer(raw)


@pytest.mark.parametrize("choices", [[], [{}, {}]])
def test_an_answer_of_several_choices_is_refused(choices):
    with pytest.raises(HandoverError, match="choices"):
        read_prefill_answer(body(choices=choices))


def test_a_longer_answer_is_refused_unread(monkeypatch):
    monkeypatch.setattr(prefill_answer, "MAX_ANSWER_BYTES", 10)
    with pytest.raises(HandoverError, match="longer than 10 bytes"):
        read_prefill_answer(body())


def test_a_message_counts_its_tokens_apart():
    usage = {"input_tokens": 3, "cache_read_input_tokens": 32, "cache_creation_input_tokens": 16, "output_tokens": 1}
    message = {"type": "message", "stop_reason": "max_tokens", "usage": usage, "kv_transfer_params": {"a": 1}}
    answer = read_message_answer(msgspec.json.encode(message))
    assert (answer.finish_reason, answer.params, answer.prompt_token_ids) == ("length", {"a": 1}, None)
    assert (answer.prompt_tokens, answer.cached_tokens) == (51, 32)


@pytest.mark.parametrize(
    ("reason", "end"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("tool_use", "stop"), (None, None), ("x", None), ([1], None)],
)
def test_the_end_of_a_message_is_named_as_a_completions(reason, end):
    answer = read_message_answer(msgspec.json.encode({"type": "message", "stop_reason": reason}))
    assert (answer.finish_reason, answer.prompt_tokens, answer.cached_tokens) == (end, None, 0)


def response(**fields):
    usage = {"input_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}
    return msgspec.json.encode({"object": "response", "status": "completed", "usage": usage} | fields)


def test_a_response_has_its_ids_in_its_input_message():
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    answer = read_response_answer(response(input_messages=[{"tokens": [5, 6]}], kv_transfer_params={"a": 1}, **cut))
    assert (answer.finish_reason, answer.params, answer.prompt_token_ids) == ("length", {"a": 1}, [5, 6])
    assert (answer.prompt_tokens, answer.cached_tokens) == (2, 1)


def test_messages_of_a_response_without_ids_are_left_out():
    assert read_response_answer(response(input_messages=[{"role": "user"}])).prompt_token_ids is None
    assert read_response_answer(response(input_messages=[{"tokens": [1]}, {"tokens": [2]}])).prompt_token_ids is None
    assert read_response_answer(response()).finish_reason == "stop"
    assert read_response_answer(response(status="failed")).finish_reason is None


@pytest.mark.parametrize("read", [read_message_answer, read_response_answer])
@pytest.mark.parametrize("raw", [b"", b"{}", b'{"type":"error"}', b'{"object":1}', b"[" * 100_000])
def test_another_document_is_no_message_and_no_response(read, raw):
    with pytest.raises(HandoverError, match="is not a"):
        read(raw)
