import json

import pytest

pytestmark = pytest.mark.any_version

PROMPT = "Look things up before you answer, and say where you found them. " * 20


def tool(name, **more):
    parameters = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}
    function = {"name": name, "description": f"Look up {name} in the documentation.", "parameters": parameters, **more}
    return {"type": "function", "function": function}


TOOLS = [tool(name) for name in ("module", "function", "exception")]


def called(number, name, arguments, content=None):
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def found(number, content):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


def user(text):
    return {"role": "user", "content": text}


def test_tools_are_part_of_the_prompt(talk):
    messages = [{"role": "system", "content": PROMPT}, user("What raises KeyError?")]
    bare = talk.chat(messages)
    with_tools = talk.chat(messages, tools=TOOLS)
    assert with_tools.prompt_tokens > bare.prompt_tokens and with_tools.reported == 0
    assert talk.chat(messages, tools=TOOLS).reported > 300
    for tools in (TOOLS[:2], TOOLS[::-1], [*TOOLS, tool("module")]):
        talk.chat(messages, tools=tools)
        talk.chat(messages, tools=tools)
    talk.exact(9)


def test_tool_choice_is_not_part_of_the_prompt(talk):
    messages = [{"role": "system", "content": PROMPT}, user("What raises IndexError?")]
    for choice in ("auto", "none", "auto"):
        talk.chat(messages, tools=TOOLS, tool_choice=choice)
        talk.chat(messages, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    talk.exact(6)


def test_tools_with_fields_in_any_order_are_predicted(talk):
    messages = [{"role": "system", "content": PROMPT}, user("What is a slot?")]
    function = dict(reversed(TOOLS[0]["function"].items()))
    nested = {"type": "object", "properties": {"é": {"enum": ["<a>", 'q"', 1, 1.0, None, True]}, "b": {}, "a": {}}}
    kinds = [
        [{"function": function, "type": "function"}],
        [tool("strict", strict=True)],
        [tool("strict", strict=False)],
        [tool("nested", parameters=nested)],
        [{"type": "function", "function": {"name": "bare"}}],
    ]
    if talk.version >= (0, 33):  # 0.23 shows templates the fields of a tool that it does not know
        kinds += [[tool("more", unknown="field")], [{**tool("outside"), "unknown": "field"}]]
    for tools in kinds:
        talk.chat(messages, tools=tools)
        assert talk.chat(messages, tools=tools).reported > 100
    talk.exact(2 * len(kinds))


def test_calls_and_results_in_the_history_are_predicted(talk):
    messages = [{"role": "system", "content": PROMPT}]
    for turn in range(6):
        messages.append(user(f"Question {turn}"))
        messages.append(called(2 * turn, "module", json.dumps({"topic": f"it{turn}", "n": [turn, 0.5, None]})))
        messages.append(found(2 * turn, f"Result {turn}: " + "word " * 9 * turn))
        talk.chat(messages, tools=TOOLS)
        messages.append(called(2 * turn + 1, "function", '{ "b":1,\n"a" : "é" }', content="I shall look further."))
        messages.append(found(2 * turn + 1, [{"type": "text", "text": f"Part of {turn}"}]))
        answer = talk.chat(messages, tools=TOOLS, max_tokens=30)
        assert answer.reported > 300 or not turn
        messages.append({"role": "assistant", "content": answer.text})
    talk.exact(12)


def test_arguments_of_all_kinds_are_predicted(talk):
    for number, arguments in enumerate(
        ('{"x": 1}', "{}", "", "  ", '{"x": {"y": [1, "\\u00e9", 1e3]}}', '{"b": 2, "a": 1, "b": 3}', '{"x": NaN}')
    ):
        messages = [user(PROMPT), called(number, "module", arguments), found(number, "nothing"), user("So?")]
        first = talk.send("/v1/chat/completions", {"model": talk.model, "messages": messages, "max_tokens": 4})
        if first.status == 200:
            talk.settle()
            talk.chat(messages)
            talk.chat(messages, tools=TOOLS)
    talk.exact(8)


def test_several_calls_in_one_message_are_predicted(talk):
    call = called(0, "module", '{"topic": "io"}')
    call["tool_calls"].append(
        {"id": "call_1", "type": "function", "function": {"name": "exception", "arguments": "{}"}}
    )
    messages = [user(PROMPT), call, found(0, "it is there"), found(1, "nowhere"), user("So?")]
    for length in range(3, 6):
        talk.chat(messages[:length], tools=TOOLS)
        talk.chat(messages[:length], tools=TOOLS)
    talk.exact(6)
