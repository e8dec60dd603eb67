"""Anthropic Messages bodies as chats. tests/real_vllm/test_agent_apis.py checks the same shapes with vLLM."""

import copy
import json
from pathlib import Path

import pytest

import backends.simulated
from backends.vllm.messages_api import chat_of_messages, refuses_late_system
from backends.vllm.render import ChatRenderer, Unrenderable

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
LINE = "x-anthropic-billing-header: cch=1"
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"b": "Köln", "a": [1.0, None]}}
CALL = {
    "id": "t1",
    "type": "function",
    "function": {"name": "weather", "arguments": json.dumps({"b": "Köln", "a": [1.0, None]})},
}
SCHEMA = {"properties": {"city": {"type": "string"}}}


class Habits:
    merges_late_system = False
    disabled_effort = "none"


class Merging(Habits):
    merges_late_system = True
    disabled_effort = "low"


def text(words, **fields):
    return {"type": "text", "text": words, **fields}


def result(content, tool_use_id="t1", **fields):
    return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content, **fields}


def chat(*messages, habits=None, **fields):
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": r, "content": c} for r, c in messages], **fields}
    untouched = copy.deepcopy(body)
    made = chat_of_messages(body, habits or Habits())
    assert body == untouched
    return made


def turns(*messages, **fields):
    return [tuple(turn.values()) if len(turn) == 2 else turn for turn in chat(*messages, **fields)["messages"]]


def tool(content, call_id="t1"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


@pytest.mark.parametrize(
    ("system", "first"),
    [
        (None, []),
        ("", []),
        ([], []),
        ("S", [("system", "S")]),
        ([text("a", cache_control={"type": "ephemeral"}), text(""), text("b\n")], [("system", "ab\n")]),
        ([text(f"{LINE}\nall of it goes"), text("b")], [("system", "b")]),
        (f"{LINE}\nrest", [("system", f"{LINE}\nrest")]),
        ([{"type": "thinking", "thinking": "x"}, text("b")], [("system", "b")]),
    ],
)
def test_the_system_prompt_becomes_the_first_message(system, first):
    assert turns(("user", "u"), system=system) == [*first, ("user", "u")]


@pytest.mark.parametrize(
    ("content", "made"),
    [
        ("a", [("user", "a")]),
        ("", [("user", "")]),
        ([text("a", citations=[])], [("user", "a")]),
        ([text(""), text("a"), text("b")], [("user", [text("a"), text("b")])]),
        ([text("")], []),
        ([], []),
        ([{"type": "image"}, text("a")], [("user", "a")]),
        ([{"type": "tool_reference", "tool_name": "x"}, text("a")], [("user", "a")]),
        ([result("x")], [tool("x")]),
        ([text("a"), result([text("x"), text(""), text("y")]), text("b"), result(None, "t2")],
         [tool("x\n\ny"), tool("", "t2"), ("user", [text("a"), text("b")])]),
        ([result([{"type": "document"}, text("x"), {"text": "untyped"}], is_error=True)], [tool("x")]),
        ([{"type": "tool_result"}], [tool("", "")]),
    ],
)  # fmt: skip
def test_user_blocks_become_messages(content, made):
    assert turns(("user", content), ("user", "end")) == [*made, ("user", "end")]


@pytest.mark.parametrize(
    ("content", "made"),
    [
        ([], {"role": "assistant"}),
        ([{"type": "redacted_thinking", "data": "xx"}], {"role": "assistant"}),
        ([{"type": "thinking", "thinking": "hm", "signature": "s"}, text("b")],
         {"role": "assistant", "reasoning": "hm", "content": "b"}),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "thinking", "thinking": "ho"}],
         {"role": "assistant", "reasoning": "hmho"}),
        ([{"type": "thinking", "thinking": ""}, text("b")], {"role": "assistant", "reasoning": "", "content": "b"}),
        ([{"type": "thinking"}, text("b")], {"role": "assistant", "content": "b"}),
        ([text("let me"), USE], {"role": "assistant", "tool_calls": [CALL], "content": "let me"}),
        ([USE], {"role": "assistant", "tool_calls": [CALL]}),
        ([result([text("x")])], {"role": "assistant", "content": "Tool result: [{'type': 'text', 'text': 'x'}]"}),
        ([result(None)], {"role": "assistant", "content": "Tool result: "}),
    ],
)  # fmt: skip
def test_assistant_blocks_become_one_message(content, made):
    assert chat(("user", "q"), ("assistant", content))["messages"][1] == made


def test_a_tool_use_without_input_or_name_follows_vllm():
    use = {"type": "tool_use", "id": "i"}
    (call,) = chat(("assistant", [use]))["messages"][0]["tool_calls"]
    assert call["function"] == {"name": "", "arguments": "{}"}


def test_late_system_messages_stay_or_are_merged():
    messages = (("user", "a"), ("system", [text("S1"), text(LINE), text("S2")]), ("system", LINE), ("user", "b"))
    kept = [("system", "S0"), ("user", "a"), ("system", "S1S2"), ("user", "b")]
    assert turns(*messages, system="S0") == kept
    assert turns(*messages, system="S0", habits=Merging()) == [("system", "S0S1S2"), ("user", "a"), ("user", "b")]
    assert turns(("user", "a"), ("system", ""), habits=Merging()) == [("user", "a")]


def test_tools_become_functions():
    plain = {"name": "f", "input_schema": {"type": "array"}, "cache_control": {}, "type": "custom"}
    typed = {"name": "g", "description": "d", "input_schema": SCHEMA, "strict": True, "defer_loading": False}
    first, second = chat(("user", "a"), tools=[plain, typed])["tools"]
    assert first["function"]["parameters"] == {"type": "array"} and first["function"]["strict"] is None
    assert second == {
        "type": "function",
        "function": {
            "name": "g",
            "description": "d",
            "strict": True,
            "defer_loading": False,
            "parameters": {**SCHEMA, "type": "object"},
        },
    }
    assert chat(("user", "a"), tools=[])["tools"] == [] and "tools" not in chat(("user", "a"))


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
        ({"output_config": {"format": {"type": "json_schema"}}}, None),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none"),
        ({"thinking": {"type": "disabled"}, "habits": Merging()}, "low"),
    ],
)
def test_the_effort_follows_thinking_and_output_config(fields, effort):
    assert chat(("user", "a"), **fields).get("reasoning_effort") == effort


def test_unknown_fields_are_not_passed_on():
    extra = {"add_generation_prompt": False, "reasoning_effort": "low", "documents": [{}], "chat_template": "x"}
    assert chat(("user", "a"), **extra) == {"messages": [{"role": "user", "content": "a"}]}
    assert chat(("user", "a"), chat_template_kwargs={"k": 1})["chat_template_kwargs"] == {"k": 1}


@pytest.mark.parametrize(
    ("messages", "refused"),
    [
        ([("user", [{"type": "image", "source": {"type": "base64", "data": "aGk="}}])], False),
        ([("user", [result([{"type": "image", "source": {}}])])], False),
        ([("user", [result([{"type": "tool_reference", "tool_name": "f"}])])], False),
        ([("system", [{"type": "tool_addition", "tool": {}}])], False),
        ([("assistant", [{"type": "tool_use", "name": "f"}])], False),
        ([("user", [{"type": "document", "source": {}}])], False),
        ([("user", None)], True),
        ([("user", 5)], True),
        ([("user", ["x"])], True),
        ([("user", [text(5)])], True),
        ([("user", [result(5)])], True),
        ([("assistant", [{**USE, "input": "x"}])], True),
        ([("tool", "x")], True),
        ([("system", None)], True),
    ],
)
def test_unknown_content_is_unrenderable(messages, refused):
    with pytest.raises(Unrenderable) as caught:
        chat(*messages)
    assert caught.value.refused is refused


@pytest.mark.parametrize(
    "fields", [{"messages": "x"}, {"messages": ["x"]}, {"tools": {}}, {"tools": [{"name": "f"}]}, {"system": 5},
               {"output_config": {"effort": "extreme"}}]
)  # fmt: skip
def test_a_shape_that_vllm_refuses_is_refused(fields):
    with pytest.raises(Unrenderable) as caught:
        chat_of_messages({"messages": [{"role": "user", "content": "a"}], **fields}, Habits())
    assert caught.value.refused


@pytest.mark.parametrize(
    ("template", "refuses"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}{{ bos_token }}", False),
        ("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('x') }}{% endif %}"
         "{% endfor %}", True),
        ("{{ strftime_now('%Y') }}", True),
        ("{{ bos_token + 'x' }}", True),
        ("{% generation %}{% endgeneration %}", True),
        ("{% for m in messages %}{% if loop.index > 9 %}{{ raise_exception('x') }}{% endif %}{% endfor %}", False),
    ],
)  # fmt: skip
def test_a_template_that_requires_its_system_message_first_is_detected(template, refuses):
    assert refuses_late_system(template) is refuses


def test_a_template_that_breaks_vllms_check_is_unrenderable():
    with pytest.raises(Unrenderable, match="TypeError"):
        refuses_late_system("{{ tools | tojson }}")


def renderer(folder, template):
    (folder / "tokenizer.json").write_bytes((MODEL_DIR / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return ChatRenderer.load(folder)


@pytest.mark.parametrize(
    ("template", "effort"),
    [
        ("{{ messages[0].content }}", "low"),
        ("{{ enable_thinking }}", "none"),
        ("{{ reasoning_effort }}", "none"),
        ("{{ reasoning_effort if reasoning_effort in ('low', 'high') else 'max' }}", "low"),
        ("{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}", "low"),
        ("{% if reasoning_effort != 'none' %}{{ raise_exception('no') }}{% endif %}", "none"),
    ],
)
def test_disabled_thinking_follows_the_template(tmp_path, template, effort):
    assert renderer(tmp_path, template).disabled_effort == effort


def test_fields_are_rendered_in_the_order_of_openais_types(tmp_path):
    render = renderer(tmp_path, "{% for m in messages %}{{ m | tojson }}{% endfor %}").render_messages
    body = {"messages": [{"role": "assistant", "content": [USE]}]}
    assert render(body) == (
        '{"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "function": '
        '{"arguments": {"b": "Köln", "a": [1.0, null]}, "name": "weather"}, "type": "function"}]}'
    )
    with pytest.raises(Unrenderable):
        render({"messages": {}})
