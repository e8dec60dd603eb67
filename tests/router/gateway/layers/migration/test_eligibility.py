import msgspec
import pytest

from router.gateway.layers.migration.eligibility import Ineligible, fields_of, has_media, refusal

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "y"}]}]
TOOL = {"type": "function", "function": {"name": "f"}}
FREE = [
    {},
    {"temperature": 0.7, "seed": 3, "min_tokens": 4, "logit_bias": {"5": 1.5}, "repetition_penalty": 1.1},
    {"tools": [TOOL], "tool_choice": "auto"},
    {"response_format": {"type": "text"}},
    {"n": 1, "stop": [], "presence_penalty": 0, "frequency_penalty": 0.0, "echo": False},
    {"logprobs": True, "include_reasoning": True},
]
REFUSED = [
    ({"n": 2}, "several_answers"),
    ({"n": "2"}, "several_answers"),
    ({"best_of": 3}, "several_answers"),
    ({"use_beam_search": True}, "several_answers"),
    ({"response_format": {"type": "json_object"}}, "guided_output"),
    ({"structured_outputs": {"regex": "a"}}, "guided_output"),
    ({"guided_json": {}}, "guided_output"),
    ({"tool_choice": "required"}, "guided_output"),
    ({"tool_choice": {"type": "function"}}, "guided_output"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "guided_output"),
    ({"functions": [{"name": "f"}]}, "guided_output"),
    ({"presence_penalty": 0.1}, "penalties"),
    ({"frequency_penalty": -1}, "penalties"),
    ({"repetition_detection": {}}, "penalties"),
    ({"stop": "x"}, "stop"),
    ({"stop": ["x"]}, "stop"),
    ({"include_stop_str_in_output": True}, "stop"),
    ({"prompt_embeds": "x"}, "media"),
    ({"echo": True}, "echo"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"include_reasoning": False}, "hidden_reasoning"),
    ({"truncate_prompt_tokens": 5}, "truncation"),
    ({"kv_transfer_params": {}}, "transfer"),
]


def why(path, members):
    fields = fields_of(msgspec.json.encode(members))
    assert fields is not None
    return refusal(path, fields)


@pytest.mark.parametrize("more", FREE)
def test_a_stream_that_depends_on_its_ids_alone_can_go_on(more):
    assert why(CHAT, {"messages": MESSAGES} | more) is None


@pytest.mark.parametrize(("more", "reason"), REFUSED)
def test_a_refusal_has_a_reason(more, reason):
    assert why(CHAT, {"messages": MESSAGES} | more) == reason


@pytest.mark.parametrize("prompt", ["text", [1, 2, 3], [5]])
def test_a_completion_of_one_prompt_can_go_on(prompt):
    assert why(TEXT, {"prompt": prompt}) is None


@pytest.mark.parametrize("prompt", [["a", "b"], ["a"], [[1, 2], [3]], [[1, 2]], []])
def test_a_list_of_prompts_cannot(prompt):
    assert why(TEXT, {"prompt": prompt}) is Ineligible.SEVERAL_ANSWERS


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/embeddings"])
def test_other_apis_cannot(path):
    assert why(path, {}) is Ineligible.PATH


def test_media_is_any_part_that_is_not_known_to_be_text():
    assert not has_media(msgspec.json.encode(MESSAGES))
    assert not has_media(b"")
    for part in ({"type": "image_url"}, {"type": "audio"}, {"image": "x"}, 7):
        assert has_media(msgspec.json.encode([{"role": "user", "content": [{"type": "text"}, part]}]))
    assert has_media(b"[7]")


def test_a_body_that_is_no_object_has_no_fields():
    assert fields_of(b"[]") is None
    assert fields_of(b'{"a"') is None
