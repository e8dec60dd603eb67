"""The answer of a prefill request, as vLLM 0.33 sends it and as no server should."""

import msgspec
import pytest

from backends.vllm.handover import prefill_answer
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.prefill_answer import read_prefill_answer

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
