import pytest

PATH = "/v1/responses"
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out")
LOREM = "Say what is wrong, why, and how to mend it; be brief and kind. "
SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "string", "description": "é"}, "a": {"type": "number", "maximum": 1.0}},
    "required": ["b"],
}
LINE = "x-anthropic-billing-header: cch=123"


def user(content, **fields):
    return {"role": "user", "content": content, **fields}


def easy(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def system(content):
    return {"role": "system", "content": content}


def heard(text, **fields):
    return {"type": "input_text", "text": text, **fields}


def written(text, **fields):
    return {"type": "output_text", "text": text, **fields}


def said(*parts, **fields):
    return {"type": "message", "role": "assistant", "content": list(parts), **fields}


def output(content, call_id="call_00001", **fields):
    return {"type": "function_call_output", "call_id": call_id, "output": content, **fields}


def body(given, **fields):
    return {"input": given, "max_output_tokens": 4, **fields}


CALL = {"type": "function_call", "call_id": "call_00001", "name": "weather", "arguments": '{"b": "Köln", "a": 1.50}'}
SECOND = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_00002",
    "name": "clock",
    "arguments": "",
    "status": "completed",
}
REASON = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "long"}, {"type": "reasoning_text", "text": "more"}],
}
SUMMARY = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
TOOLS = [
    {"type": "function", "name": "weather", "description": "Look\nup", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "clock", "parameters": None},
]
FREEFORM = {"type": "custom_tool_call", "call_id": "call_00001", "name": "patch", "input": "dïff\n"}
LONG = [item for n in range(20) for item in (user(LOREM * 5 + str(n)), said(written(LOREM + str(n))))]

BODIES = {
    "string": body("hi"),
    "empty string": body(""),
    "instructions": body("hi", instructions="be brief"),
    "instructions empty": body("hi", instructions=""),
    "instructions billing": body("hi", instructions=LINE + "\nrest"),
    "list": body([user("hi")]),
    "list typed": body([{"type": "message", "role": "user", "content": [heard("a"), heard("b"), heard("")]}]),
    "list untyped parts": body([user([heard("a")])]),
    "text type parts": body([user([{"type": "text", "text": "a"}])]),
    "extras": body([{"role": "user", "content": "x", "name": "bob", "zzz": 1, "task": "k"}]),
    "extras in part": body([user([heard("a", zzz=1, cache_control={})])]),
    "breakpoint in part": body([user([heard("a", prompt_cache_breakpoint={"mode": "explicit"})])]),
    "status user easy": body([{"role": "user", "content": "x", "status": "incomplete"}]),
    "status user typed": body([{"type": "message", "role": "user", "content": [heard("x")], "status": "incomplete"}]),
    "status completed": body([{"type": "message", "role": "user", "content": [heard("x")], "status": "completed"}]),
    "developer": body([{"role": "developer", "content": "D"}, user("x")], instructions="I"),
    "developer tools": body(
        [
            {
                "role": "developer",
                "content": "D",
                "tools": [{"type": "function", "function": {"strict": None, "name": "g"}}],
            },
            user("x"),
        ]
    ),
    "system": body([system("S"), user("x")], instructions="I"),
    "system late": body([user("x"), system([heard("S")]), user("y")]),
    "assistant easy": body([user("a"), easy("b"), user("c")]),
    "assistant easy twice": body([user("a"), easy("b"), easy("c"), user("c")]),
    "assistant output": body([user("a"), said(written("b"), written("ignored")), user("c")]),
    "assistant output full": body(
        [user("a"), said(written("b", annotations=[], logprobs=[]), id="msg_1", status="completed"), user("c")]
    ),
    "assistant input_text": body([user("a"), said(heard("b")), user("c")]),
    "assistant input_text untyped": body([user("a"), easy([heard("b"), heard("c")]), user("c")]),
    "assistant untyped output_text": body([user("a"), easy([written("b")]), user("c")]),
    "assistant empty list": body([user("a"), said(), user("c")]),
    "assistant refusal": body([user("a"), said({"type": "refusal", "refusal": "no"}), user("c")]),
    "assistant empty text": body([user("a"), said(written("")), user("c")]),
    "open": body([user("a"), said(written("The answer "), status="in_progress")]),
    "open incomplete": body([user("a"), said(written("The answer is"), id="m", status="incomplete")]),
    "open easy": body(
        [user("a"), {"type": "message", "role": "assistant", "content": "The answer ", "status": "incomplete"}]
    ),
    "open easy untyped": body([user("a"), {"role": "assistant", "content": "The answer ", "status": "incomplete"}]),
    "open input_text": body([user("a"), said(heard("The answer "), status="incomplete")]),
    "open not last": body([user("a"), said(written("The"), status="incomplete"), user("b")]),
    "open reasoning": body([user("a"), {**REASON, "status": "in_progress"}]),
    "reasoning": body([user("a"), REASON, said(written("b")), user("c")]),
    "reasoning summary": body([user("a"), SUMMARY, said(written("b")), user("c")]),
    "reasoning empty": body([user("a"), {"type": "reasoning", "summary": []}, said(written("b")), user("c")]),
    "reasoning after": body([user("a"), said(written("b")), REASON, CALL, output("x"), user("c")]),
    "reasoning twice": body([user("a"), REASON, SUMMARY, said(written("b")), user("c")]),
    "reasoning encrypted": body([user("a"), {**REASON, "encrypted_content": "zz"}, user("c")]),
    "reasoning no summary": body(
        [user("a"), {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]}, user("c")]
    ),
    "call": body([user("a"), CALL, output("sunny")], tools=TOOLS),
    "call two": body([user("a"), CALL, SECOND, output("sunny"), output("12", "call_00002"), user("b")], tools=TOOLS),
    "call reasoning text": body(
        [user("a"), REASON, said(written("let me")), CALL, SECOND, output("sunny"), output("12", "call_00002")],
        tools=TOOLS,
    ),
    "text after call": body([user("a"), CALL, said(written("calling")), output("x")]),
    "call namespace": body([user("a"), {**CALL, "namespace": "crm"}, output("x")]),
    "call bad arguments": body([user("a"), {**CALL, "arguments": "{nope"}, output("x")]),
    "call first": body([CALL, output("x"), user("a")]),
    "call no name": body([user("a"), {"type": "function_call", "call_id": "c", "arguments": "{}"}, output("x", "c")]),
    "output parts": body([user("a"), CALL, output([heard("x"), heard(""), heard("y")])]),
    "output parts with id": body(
        [user("a"), CALL, output([heard("x")], id="call_00001", status="completed") | {"id": "fco_1"}]
    ),
    "output string with id": body([user("a"), CALL, output("x", status="completed") | {"id": "fco_1"}]),
    "output no call id": body([user("a"), CALL, {"type": "function_call_output", "output": "x"}]),
    "output call id null": body([user("a"), CALL, {"type": "function_call_output", "output": "x", "call_id": None}]),
    "output null": body([user("a"), CALL, {"type": "function_call_output", "output": None, "call_id": "call_00001"}]),
    "custom call": body(
        [user("a"), FREEFORM, {"type": "custom_tool_call_output", "call_id": "call_00001", "output": "ok"}],
        tools=[{"type": "custom", "name": "patch", "description": "Freeform"}],
    ),
    "custom output parts": body(
        [
            user("a"),
            {"type": "custom_tool_call", "call_id": "call_00001", "name": "patch", "input": ""},
            {"type": "custom_tool_call_output", "call_id": "call_00001", "output": [heard("ok")]},
        ]
    ),
    "tools": body("a", tools=TOOLS, instructions="I"),
    "tools defer": body("a", tools=[{**TOOLS[0], "defer_loading": True, "strict": False}]),
    "tools none": body("a", tools=TOOLS, tool_choice="none"),
    "tools required": body("a", tools=TOOLS, tool_choice="required"),
    "tools named": body("a", tools=TOOLS, tool_choice={"type": "function", "name": "clock"}),
    "tools empty": body("a", tools=[]),
    "tools custom": body("a", tools=[{"type": "custom", "name": "patch", "format": {"type": "text"}}, TOOLS[0]]),
    "tools namespace": body(
        "a",
        tools=[
            {
                "type": "namespace",
                "name": "crm",
                "description": "d",
                "tools": [{"type": "function", "name": "find", "parameters": SCHEMA}, {"type": "custom", "name": "x"}],
            }
        ],
    ),
    "tools web": body("a", tools=[{"type": "web_search"}]),
    "tools chat form": body("a", tools=[{"type": "function", "function": {"name": "f"}}]),
    "reasoning effort": body("a", reasoning={"effort": "high", "summary": "auto"}),
    "reasoning effort none": body("a", reasoning={"effort": "none"}),
    "reasoning null": body("a", reasoning={"effort": None}),
    "kwargs": body("a", chat_template_kwargs={"style": "dry", "enable_thinking": True}, reasoning={"effort": "none"}),
    "kwargs null": body(
        "a", chat_template_kwargs={"style": None, "extra": "auto", "enable_thinking": None}, reasoning={"effort": "low"}
    ),
    "kwargs tokenize": body("a", chat_template_kwargs={"tokenize": True}),
    "kwargs generation": body(
        "a", chat_template_kwargs={"add_generation_prompt": False, "continue_final_message": True}
    ),
    "ignored": body(
        "a",
        temperature=0.3,
        store=False,
        truncation="disabled",
        text={"format": {"type": "text"}},
        metadata={"a": "b"},
        parallel_tool_calls=False,
        user="u",
        add_generation_prompt=False,
        add_special_tokens=False,
        documents=[{"title": "t"}],
        reasoning_effort="high",
        n=2,
    ),
    "truncation auto": body("a", truncation="auto"),
    "truncation null": body("a", truncation=None),
    "mm kwargs empty": body("a", mm_processor_kwargs={}),
    "image": body(
        [user([heard("a"), {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}])]
    ),
    "file": body([user([heard("a"), {"type": "input_file", "file_data": "aGk="}])]),
    "previous": body("a", previous_response_id="resp_1"),
    "item reference": body([user("a"), {"type": "item_reference", "id": "x"}]),
    "web call": body(
        [
            user("a"),
            {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
            user("b"),
        ]
    ),
    "bad role": body([{"role": "tool", "content": "x"}]),
    "no content": body([{"role": "user"}]),
    "null content": body([{"role": "user", "content": None}]),
    "number": body([user(5)]),
    "empty list": body([]),
    "long": body([*LONG, user("end")], instructions=LOREM * 20),
    "prompt": body("a", prompt={"id": "p"}),
    "ids": body("a", kv_transfer_params={"prompt_token_ids": [5, 6, 7]}),
}

REFUSED = {
    "text type parts", "assistant untyped output_text", "assistant empty list", "assistant refusal",
    "reasoning encrypted", "reasoning no summary", "call no name", "output null", "tools chat form", "prompt",
    "item reference", "web call", "bad role", "no content", "null content", "number", "empty list", "previous", "image",
    "file",
    "open reasoning",
}  # fmt: skip
"""Bodies that vLLM refuses, always or for this model."""
BY_TEXT = {"output parts with id", "custom output parts", "tools web"}
"""Bodies that vLLM accepts but that are not rendered here."""


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
        assert len(seen.equal) >= 45
    else:
        assert seen.by_text.keys() - REFUSED == BY_TEXT
        assert seen.refused <= REFUSED
        assert len(seen.equal) >= 60


def test_the_prediction_equals_the_report(server, front):
    gateway = front(server)
    for name, fields in BODIES.items():
        for stream in (False, True, False):
            if name in REFUSED | BY_TEXT:
                break
            answer = gateway.send(PATH, {"model": gateway.model, **fields, "stream": stream})
            if answer.status == 400:
                break
            assert answer.status == 200, (name, answer.body)
            gateway.settle()
            gateway.compare(answer, f"{name}, stream={stream}")
    gateway.exact(140)


def test_a_conversation_is_predicted_to_the_block(template, server, front):
    server.reset_prefix_cache()
    gateway = front(server)
    items = []
    for turn in range(6):
        items.append(user([heard(f"Question {turn}: {LOREM}")]))
        fields = body(items, instructions=LOREM * 30, tools=TOOLS)
        answer = gateway.ask(PATH, {"model": gateway.model, **fields})
        if template == "instructions":  # puts the system text into the last question, and accepts no results beside it
            items.append(said(written(f"Answer {turn}")))
            continue
        assert turn == 0 or answer.reported > 300
        items += answer.body["output"]
        items += [{**CALL, "call_id": f"call_{turn:05}"}, output(f"result {turn} {LOREM}", f"call_{turn:05}")]
    gateway.exact(6)
