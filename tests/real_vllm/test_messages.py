import pytest

PATH = "/v1/messages"
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out")
LOREM = "Say what is wrong, why, and how to mend it; be brief and kind. "
SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "string", "description": "é"}, "a": {"type": "number", "maximum": 1.0}},
    "required": ["b"],
}
LINE = "x-anthropic-billing-header: cch=123"


def user(content):
    return {"role": "user", "content": content}


def said(content):
    return {"role": "assistant", "content": content}


def system(content):
    return {"role": "system", "content": content}


def text(words, **fields):
    return {"type": "text", "text": words, **fields}


def thinking(words, **fields):
    return {"type": "thinking", "thinking": words, **fields}


def result(content, tool_use_id="toolu_000000001", **fields):
    return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content, **fields}


def body(*messages, **fields):
    return {"max_tokens": 4, "messages": list(messages), **fields}


USE = {
    "type": "tool_use",
    "id": "toolu_000000001",
    "name": "weather",
    "input": {"b": "Köln", "a": 1.5, "n": None, "l": [1, {"x": True}]},
}
CLOCK = {"type": "tool_use", "id": "toolu_000000002", "name": "clock", "input": {}}
TOOLS = [
    {"name": "weather", "description": "Look\nup", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
    {"name": "clock", "input_schema": {"properties": {}}, "strict": True, "defer_loading": False, "type": "custom"},
]
REDACTED = {"type": "redacted_thinking", "data": "xxxx"}
LONG = [message for n in range(20) for message in (user(LOREM * 5 + str(n)), said(LOREM + str(n)))]

BODIES = {
    "plain": body(user("hi")),
    "unicode": body(user("naïve 日本語 🙂 \t\n x")),
    "system string": body(user("hi"), system="be brief"),
    "system empty": body(user("hi"), system=""),
    "system empty list": body(user("hi"), system=[]),
    "system blocks": body(user("hi"), system=[text("a", cache_control={"type": "ephemeral"}), text(""), text("b\n")]),
    "system billing block": body(user("hi"), system=[text(LINE + "\nrest"), text("b")]),
    "system billing string": body(user("hi"), system=LINE + "\nrest"),
    "system billing only": body(user("hi"), system=LINE),
    "system nontext block": body(user("hi"), system=[thinking("x"), text("b")]),
    "blocks": body(user([text("a"), text("b")])),
    "block one": body(user([text("a", citations=[])])),
    "blocks empties": body(user([text(""), text("a"), text("")]), said("x"), user([text("")])),
    "empty string": body(user("")),
    "user only empty blocks first": body(user([text("")]), user("x")),
    "assistant empty blocks": body(user("a"), said([text("")]), user("b")),
    "assistant empty list": body(user("a"), said([]), user("b")),
    "turns": body(user("a"), said("b"), user("c"), said([text("d")]), user([text("e")])),
    "prefill": body(user("a"), said("The answer ")),
    "thinking": body(user("a"), said([thinking("hm"), text("b")]), user("c")),
    "thinking two": body(user("a"), said([thinking("hm"), thinking("ho"), text("b"), text("c")]), user("c")),
    "thinking empty": body(user("a"), said([thinking(""), text("b")]), user("c")),
    "thinking null": body(user("a"), said([{"type": "thinking"}, text("b")]), user("c")),
    "thinking only": body(user("a"), said([thinking("hm")]), user("c")),
    "thinking by user": body(user([thinking("hm"), text("x")]), user([thinking("hm")]), said("z"), user("y")),
    "redacted": body(user("a"), said([REDACTED, text("b")]), user("c")),
    "redacted only": body(user("a"), said([REDACTED]), user("c")),
    "tool use": body(user("a"), said([text("let me"), USE]), user([result("sunny")]), tools=TOOLS),
    "tool use only": body(user("a"), said([USE]), user([result("sunny")]), tools=TOOLS),
    "tool use thinking": body(
        user("a"),
        said([thinking("hm"), USE, CLOCK]),
        user([result("sunny"), result("12", "toolu_000000002"), text("and?")]),
        tools=TOOLS,
    ),
    "tool result blocks": body(
        user("a"),
        said([USE]),
        user([result([text("x"), text(""), text("y")]), text("q"), result("later", "toolu_000000002"), text("r")]),
        tools=TOOLS,
    ),
    "tool result none": body(
        user("a"),
        said([USE]),
        user(
            [
                {"type": "tool_result", "tool_use_id": "toolu_1"},
                result(None, "x"),
                result("", "y"),
                result([], "z", is_error=True),
            ]
        ),
        tools=TOOLS,
    ),
    "tool result doc": body(
        user("a"),
        said([USE]),
        user([result([{"type": "document", "source": {}}, text("x"), {"text": "no type"}])]),
        tools=TOOLS,
    ),
    "tool result no id": body(user("a"), said([USE]), user([{"type": "tool_result", "content": "x"}]), tools=TOOLS),
    "tool result by assistant": body(
        user("a"), said([result("x"), text("y"), result([text("it's", extra=1)])]), user("b")
    ),
    "tool use no input": body(
        user("a"), said([{"type": "tool_use", "id": "i", "name": "f"}]), user([result("x", "i")])
    ),
    "tool use no name": body(
        user("a"), said([{"type": "tool_use", "id": "i", "input": {"a": 1}}]), user([result("x", "i")])
    ),
    "tool use by user": body(user([USE, text("x")]), user([USE]), user("y")),
    "tools empty": body(user("a"), tools=[]),
    "tools": body(user("a"), tools=TOOLS, system="S"),
    "tools nothing": body(user("a"), tools=[{"name": "f", "input_schema": {}}]),
    "tools choice none": body(user("a"), tools=TOOLS, tool_choice={"type": "none"}),
    "tools choice any": body(user("a"), tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True}),
    "tools choice named": body(user("a"), tools=TOOLS, tool_choice={"type": "tool", "name": "clock"}),
    "inline system": body(
        system("S1"), user("a"), said("b"), system([text("S2"), text(LINE), text("S3")]), user("c"), system="S0"
    ),
    "inline system empty": body(user("a"), system(""), system([text("")]), system(LINE + "\nx"), user("c")),
    "inline system last": body(user("a"), system("S")),
    "thinking disabled": body(user("a"), thinking={"type": "disabled"}),
    "thinking disabled effort": body(user("a"), thinking={"type": "disabled"}, output_config={"effort": "high"}),
    "thinking enabled": body(user("a"), thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000),
    "thinking adaptive": body(user("a"), thinking={"type": "adaptive"}, output_config={"effort": "max"}),
    "effort": body(user("a"), output_config={"effort": "low"}),
    "output config": body(user("a"), output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}),
    "kwargs": body(user("a"), chat_template_kwargs={"style": "dry", "enable_thinking": False, "unused": 1}),
    "kwargs null": body(
        user("a"),
        chat_template_kwargs={"style": None, "extra": "auto", "enable_thinking": None},
        output_config={"effort": "low"},
    ),
    "kwargs generation": body(user("a"), chat_template_kwargs={"add_generation_prompt": False}),
    "kwargs tokenize": body(user("a"), chat_template_kwargs={"tokenize": True}),
    "kwargs tokenize false": body(user("a"), chat_template_kwargs={"tokenize": False, "return_dict": True}),
    "ignored fields": body(
        user("a"),
        stop_sequences=["x"],
        metadata={"user_id": "u"},
        temperature=0.5,
        top_k=3,
        add_generation_prompt=False,
        documents=[{"title": "t", "text": "x"}],
        reasoning_effort="high",
        zzz=1,
        n=3,
        session_id="s",
        truncate_prompt_tokens=2,
        add_special_tokens=True,
    ),
    "cache control": body(user([text("a", cache_control={"type": "ephemeral"})]), cache_salt="salt"),
    "long": body(*LONG, user("end"), system=LOREM * 20),
    "name field": body({"role": "user", "content": "x", "name": "bob", "tool_calls": []}),
    "image": body(
        user([text("a"), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}])
    ),
    "image without source": body(user([text("a"), {"type": "image"}])),
    "tool reference": body(
        user("a"), said([USE]), user([result([{"type": "tool_reference", "tool_name": "weather"}])]), tools=TOOLS
    ),
    "tool reference outside": body(user([text("a"), {"type": "tool_reference", "tool_name": "weather"}])),
    "tool addition": body(
        user("a"),
        system([{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "weather"}}]),
        user("b"),
        tools=TOOLS,
    ),
    "tool use no id": body(user("a"), said([{"type": "tool_use", "name": "f", "input": {}}]), user("b")),
    "unknown block": body(user([{"type": "document", "source": {}}])),
    "no messages": body(),
    "bad role": body({"role": "tool", "content": "x"}),
    "null content": body({"role": "assistant", "content": None}, user("x")),
    "number": body(user(5)),
    "ids": body(user("a"), kv_transfer_params={"prompt_token_ids": [5, 6, 7]}),
}

BY_TEXT = {
    "image", "tool reference", "tool addition", "tool use no id", "unknown block", "bad role", "null content", "number",
    "no messages",
}  # fmt: skip
"""Bodies that are not rendered here; vLLM does not render some of them either."""


@pytest.fixture(scope="module", params=["shown", "dump_parts", "instructions"])
def template(request):
    return request.param


@pytest.fixture(scope="module")
def folder(template, model_with):
    return model_with(template, bos=template == "instructions")


@pytest.fixture(scope="module")
def server(vllm, folder):
    return vllm(*FLAGS, model_dir=folder)


async def test_a_body_is_rendered_as_vllm_renders_it(template, server, folder, rendering):
    seen = await rendering(server, folder, PATH, BODIES)
    assert not seen.wrong
    if template == "instructions":  # refuses many bodies, and vLLM refuses them with it
        assert len(seen.equal) >= 50
    else:
        assert (seen.by_text.keys(), seen.refused) == (BY_TEXT, set())


def test_the_prediction_equals_the_report(server, front):
    gateway = front(server)
    for name, fields in BODIES.items():
        for stream in (False, True, False):
            answer = gateway.send(PATH, {"model": gateway.model, **fields, "stream": stream})
            if name in BY_TEXT or answer.status == 400:
                break
            assert answer.status == 200, (name, answer.body)
            gateway.settle()
            gateway.compare(answer, f"{name}, stream={stream}")
    gateway.exact(150)


def test_a_conversation_is_predicted_to_the_block(template, server, front):
    server.reset_prefix_cache()
    gateway = front(server)
    messages = []
    for turn in range(6):
        messages.append(user([text(f"Question {turn}: {LOREM}", cache_control={"type": "ephemeral"})]))
        answer = gateway.ask(PATH, {"model": gateway.model, **body(*messages, system=LOREM * 30, tools=TOOLS)})
        if template == "instructions":  # puts the system text into the last question, and accepts no results beside it
            messages.append(said(f"Answer {turn}"))
            continue
        assert turn == 0 or answer.reported > 300
        messages.append(said(answer.body["content"]))
        use = {**USE, "id": f"toolu_{turn:09}"}
        messages[-1]["content"].append(use)
        messages.append(user([result([text(f"result {turn} {LOREM}")], use["id"])]))
    gateway.exact(6)
