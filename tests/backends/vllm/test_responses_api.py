"""OpenAI Responses bodies as chats. tests/real_vllm/test_agent_apis.py checks the same shapes with vLLM."""

import copy
import json
from pathlib import Path

import pytest

import backends.simulated
from backends.vllm.render import ChatRenderer, Unrenderable
from backends.vllm.responses_api import chat_of_responses

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"b": 1, "a": "é"}'}
MADE = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"b": 1, "a": "é"}'}}
THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "long"}, {"type": "reasoning_text", "text": "more"}],
}


def said(*texts, **fields):
    parts = [{"type": "output_text", "text": text} for text in texts]
    return {"type": "message", "role": "assistant", "content": parts, **fields}


def asked(words):
    return {"role": "user", "content": words}


def heard(words):
    return {"type": "input_text", "text": words}


def output(content, call_id="c1", **fields):
    return {"type": "function_call_output", "call_id": call_id, "output": content, **fields}


def chat(given, **fields):
    body = {"model": "m", "input": given, **fields}
    untouched = copy.deepcopy(body)
    made = chat_of_responses(body)
    assert body == untouched
    return made


def test_text_and_instructions_become_messages():
    assert chat("hi") == {"messages": [asked("hi")], "add_generation_prompt": True, "continue_final_message": False}
    assert chat("")["messages"] == [asked("")]
    assert chat("hi", instructions="I")["messages"] == [{"role": "system", "content": "I"}, asked("hi")]
    assert chat([], instructions="")["messages"] == []


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([asked("a")], [asked("a")]),
        ([{"role": "developer", "content": "D", "name": "n"}], [{"role": "developer", "content": "D", "name": "n"}]),
        ([asked([heard("a"), heard("")])], [asked([heard("a"), heard("")])]),
        ([said("b", "ignored")], [{"role": "assistant", "content": "b"}]),
        ([{"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}],
         [{"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}]),
        ([{"role": "assistant", "content": [heard("b"), heard("c")]}], [{"role": "assistant", "content": "b"}]),
        ([THOUGHT, said("b")], [{"role": "assistant", "reasoning": "long", "content": "b"}]),
        ([{**THOUGHT, "content": None}, said("b")], [{"role": "assistant", "reasoning": "short", "content": "b"}]),
        ([{"type": "reasoning", "summary": []}], [{"role": "assistant", "reasoning": ""}]),
        ([said("b"), THOUGHT], [{"role": "assistant", "content": "b", "reasoning": "long"}]),
        ([THOUGHT, THOUGHT], [{"role": "assistant", "reasoning": "long"}] * 2),
        ([CALL, {**CALL, "call_id": "c2", "namespace": "crm"}, output("x"), output([heard("y")], "c2")],
         [{"role": "assistant", "tool_calls": [
             MADE, {**MADE, "id": "c2", "function": {**MADE["function"], "name": "crm__weather"}}]},
          {"role": "tool", "content": "x", "tool_call_id": "c1"},
          {"role": "tool", "content": [{"type": "text", "text": "y"}], "tool_call_id": "c2"}]),
        ([THOUGHT, said("let me"), CALL],
         [{"role": "assistant", "reasoning": "long", "content": "let me", "tool_calls": [MADE]}]),
        ([CALL, said("calling")], [{"role": "assistant", "tool_calls": [MADE], "content": "calling"}]),
        ([asked("a"), CALL, output("x"), CALL],
         [asked("a"), {"role": "assistant", "tool_calls": [MADE]},
          {"role": "tool", "content": "x", "tool_call_id": "c1"}, {"role": "assistant", "tool_calls": [MADE]}]),
        ([{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "dïff\n"},
          {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}],
         [{"role": "assistant", "tool_calls": [
             {"id": "c", "type": "function", "function": {"name": "patch", "arguments": '{"input": "dïff\\n"}'}}]},
          {"role": "tool", "content": "ok", "tool_call_id": "c"}]),
        ([output("x", None)], [{"role": "tool", "content": "x", "tool_call_id": None}]),
    ],
)  # fmt: skip
def test_items_become_messages(items, messages):
    assert chat(items)["messages"] == messages


@pytest.mark.parametrize(
    ("last", "left_open"),
    [
        (said("b", status="in_progress"), True),
        (said("b", status="incomplete"), True),
        (said("b", status="completed"), False),
        ({"role": "assistant", "content": "b", "status": "incomplete"}, True),
        ({**asked("b"), "status": "incomplete"}, True),
        ({**THOUGHT, "status": "incomplete"}, True),
        ({**CALL, "status": "in_progress"}, False),
    ],
)
def test_an_incomplete_item_is_left_open(last, left_open):
    made = chat([asked("a"), last])
    assert (made["continue_final_message"], made["add_generation_prompt"]) == (left_open, not left_open)
    assert not chat([asked("a"), last, asked("c")])["continue_final_message"]


def test_tools_become_functions():
    function = {"type": "function", "name": "f", "description": "d", "parameters": {"b": 1}, "strict": False, "x": 1}
    custom = {"type": "custom", "name": "c", "format": {"type": "text"}}
    space = {
        "type": "namespace",
        "name": "n",
        "description": "",
        "tools": [{**function, "defer_loading": True}, custom],
    }
    first, second, third = (tool["function"] for tool in chat("a", tools=[function, custom, space])["tools"])
    assert first == {"name": "f", "description": "d", "parameters": {"b": 1}, "strict": False, "defer_loading": None}
    assert second["name"] == "c" and second["parameters"]["required"] == ["input"]
    assert third["name"] == "n__f" and third["defer_loading"] is True
    assert "tools" not in chat("a", tools=[]) and "tools" not in chat("a", tools=None)


def test_effort_and_kwargs_are_passed_on():
    assert chat("a", reasoning={"effort": "high", "summary": "auto"})["reasoning_effort"] == "high"
    assert "reasoning_effort" not in chat("a", reasoning={"effort": None}, reasoning_effort="low")
    assert chat("a", chat_template_kwargs={"k": 1})["chat_template_kwargs"] == {"k": 1}
    extra = {"add_generation_prompt": False, "documents": [{}], "add_special_tokens": False, "messages": []}
    assert chat("a", **extra) == chat("a")


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"previous_input_messages": [{}]},
        {"prompt": {"id": "p"}},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "mcp", "server_label": "x"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"type": "web_search_call", "id": "x"}]},
        {"input": [{**THOUGHT, "encrypted_content": "zz"}]},
        {"input": [{"type": "reasoning"}]},
        {"input": [said()]},
        {"input": [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
        {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "untyped"}]}]},
        {"input": [output([heard("x")], status="completed")]},
        {"input": [output([{"type": "input_image", "image_url": "data:"}])]},
        {"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": [heard("x")]}]},
        {"input": [output(None)]},
        {"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]},
        {"input": [{"role": "tool", "content": "x"}]},
        {"input": [{"role": "user"}]},
        {"input": ["x"]},
        {"input": 5},
        {"input": None},
        {"tools": "x"},
        {"reasoning": {"effort": 5}},
    ],
)
def test_unknown_content_is_unrenderable(fields):
    with pytest.raises(Unrenderable):
        chat_of_responses({"input": "a", **fields})


def renderer(folder, template):
    (folder / "tokenizer.json").write_bytes((MODEL_DIR / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return ChatRenderer.load(folder)


def test_fields_are_rendered_in_vllms_own_order(tmp_path):
    render = renderer(tmp_path, "{% for m in messages %}{{ m | tojson }}{% endfor %}").render_responses
    tools = [{"type": "function", "function": {"name": "g"}, "strict": None}]
    assert render({"input": [{"role": "developer", "content": "D", "tools": tools}, CALL]}) == (
        '{"role": "system", "content": "D"}{"role": "assistant", "content": "", "tool_calls": [{"id": "c1", '
        '"function": {"name": "weather", "arguments": {"b": 1, "a": "é"}}, "type": "function"}]}'
    )
    with pytest.raises(Unrenderable):
        render({"input": [{"type": "namespace", "tools": [5]}]})


def test_an_open_answer_is_rendered_open(tmp_path):
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    )
    render = renderer(tmp_path, template).render_responses
    assert (
        render({"input": [asked("q"), said("The answer ", status="incomplete")]}) == "<user>q</><assistant>The answer "
    )
    assert render({"input": [asked("q"), said("The answer ")]}) == "<user>q</><assistant>The answer </>!"
