"""The APIs that agents speak, /v1/messages and /v1/responses, with vLLM's render endpoint as reference."""

from dataclasses import dataclass, field

import pytest

FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out")
LOREM = "Say what is wrong, why, and how to mend it; be brief and kind. "
SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "string", "description": "é"}, "a": {"type": "number", "maximum": 1.0}},
    "required": ["b"],
}
LINE = "x-anthropic-billing-header: cch=123"
EPHEMERAL = {"type": "ephemeral"}
KWARGS_NULL = {"style": None, "extra": "auto", "enable_thinking": None}
NOT_TEMPLATED = {
    "metadata": {"user_id": "u"},
    "temperature": 0.5,
    "add_generation_prompt": False,
    "documents": [{"title": "t", "text": "x"}],
    "reasoning_effort": "high",
    "n": 3,
}
"""Fields that change no prompt of these APIs."""


def role(by, content, **fields):
    return {"role": by, "content": content, **fields}


def user(content, **fields):
    return role("user", content, **fields)


def said(content, **fields):
    return role("assistant", content, **fields)


def system(content):
    return role("system", content)


def text(words, **fields):
    return {"type": "text", "text": words, **fields}


# /v1/messages


def thinking(words, **fields):
    return {"type": "thinking", "thinking": words, **fields}


def result(content, tool_use_id="toolu_000000001", **fields):
    return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content, **fields}


def messages(*given, **fields):
    return {"max_tokens": 4, "messages": list(given), **fields}


def amid(*given, **fields):
    """Return a body with these messages between two questions."""
    return messages(user("a"), *given, user("c"), **fields)


def answered(*results, use=None, **fields):
    """Return a body with a tool use and its results."""
    return messages(user("a"), said(use or [USE]), user(list(results)), **fields)


USE = {
    "type": "tool_use",
    "id": "toolu_000000001",
    "name": "weather",
    "input": {"b": "Köln", "a": 1.5, "n": None, "l": [1, {"x": True}]},
}
CLOCK = {"type": "tool_use", "id": "toolu_000000002", "name": "clock", "input": {}}
ANY = {"type": "any", "disable_parallel_tool_use": True}
BARE = {"type": "tool_use", "id": "i"}
TOOLS = [
    {"name": "weather", "description": "Look\nup", "input_schema": SCHEMA, "cache_control": EPHEMERAL},
    {"name": "clock", "input_schema": {"properties": {}}, "strict": True, "defer_loading": False, "type": "custom"},
]
REDACTED = {"type": "redacted_thinking", "data": "xxxx"}
REFERENCE = {"type": "tool_reference", "tool_name": "weather"}
ADDITION = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "weather"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
LONG_TALK = [message for n in range(20) for message in (user(LOREM * 5 + str(n)), said(LOREM + str(n)))]

MESSAGES = {
    "plain": messages(user("hi")),
    "unicode": messages(user("naïve 日本語 🙂 \t\n x")),
    "system string": messages(user("hi"), system="be brief"),
    "system empty": messages(user("hi"), system=""),
    "system empty list": messages(user("hi"), system=[]),
    "system blocks": messages(user("hi"), system=[text("a", cache_control=EPHEMERAL), text(""), text("b\n")]),
    "system billing block": messages(user("hi"), system=[text(LINE + "\nrest"), text("b")]),
    "system billing string": messages(user("hi"), system=LINE + "\nrest"),
    "system billing only": messages(user("hi"), system=LINE),
    "system nontext block": messages(user("hi"), system=[thinking("x"), text("b")]),
    "blocks": messages(user([text("a"), text("b")])),
    "block one": messages(user([text("a", citations=[])])),
    "blocks empties": messages(user([text(""), text("a"), text("")]), said("x"), user([text("")])),
    "empty string": messages(user("")),
    "user only empty blocks first": messages(user([text("")]), user("x")),
    "assistant empty blocks": amid(said([text("")])),
    "assistant empty list": amid(said([])),
    "turns": messages(user("a"), said("b"), user("c"), said([text("d")]), user([text("e")])),
    "prefill": messages(user("a"), said("The answer ")),
    "thinking": amid(said([thinking("hm"), text("b")])),
    "thinking two": amid(said([thinking("hm"), thinking("ho"), text("b"), text("c")])),
    "thinking empty": amid(said([thinking(""), text("b")])),
    "thinking null": amid(said([{"type": "thinking"}, text("b")])),
    "thinking only": amid(said([thinking("hm")])),
    "thinking by user": messages(user([thinking("hm"), text("x")]), user([thinking("hm")]), said("z"), user("y")),
    "redacted": amid(said([REDACTED, text("b")])),
    "redacted only": amid(said([REDACTED])),
    "tool use": answered(result("sunny"), use=[text("let me"), USE], tools=TOOLS),
    "tool use only": answered(result("sunny"), tools=TOOLS),
    "tool use thinking": answered(
        result("sunny"), result("12", CLOCK["id"]), text("and?"), use=[thinking("hm"), USE, CLOCK], tools=TOOLS
    ),
    "tool result blocks": answered(
        result([text("x"), text(""), text("y")]), text("q"), result("later", CLOCK["id"]), text("r"), tools=TOOLS
    ),
    "tool result none": answered(
        {"type": "tool_result", "tool_use_id": "toolu_1"},
        *(result(None, "x"), result("", "y"), result([], "z", is_error=True)),
        tools=TOOLS,
    ),
    "tool result doc": answered(
        result([{"type": "document", "source": {}}, text("x"), {"text": "no type"}]), tools=TOOLS
    ),
    "tool result no id": answered({"type": "tool_result", "content": "x"}, tools=TOOLS),
    "tool result by assistant": amid(said([result("x"), text("y"), result([text("it's", extra=1)])])),
    "tool use no input": answered(result("x", "i"), use=[{**BARE, "name": "f"}]),
    "tool use no name": answered(result("x", "i"), use=[{**BARE, "input": {"a": 1}}]),
    "tool use by user": messages(user([USE, text("x")]), user([USE]), user("y")),
    "tools empty": messages(user("a"), tools=[]),
    "tools": messages(user("a"), tools=TOOLS, system="S"),
    "tools nothing": messages(user("a"), tools=[{"name": "f", "input_schema": {}}]),
    "tools choice none": messages(user("a"), tools=TOOLS, tool_choice={"type": "none"}),
    "tools choice any": messages(
        user("a"), tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True}
    ),
    "tools choice named": messages(user("a"), tools=TOOLS, tool_choice={"type": "tool", "name": "clock"}),
    "inline system": messages(
        *(system("S1"), user("a"), said("b"), system([text("S2"), text(LINE), text("S3")]), user("c")), system="S0"
    ),
    "inline system empty": amid(system(""), system([text("")]), system(LINE + "\nx")),
    "inline system last": messages(user("a"), system("S")),
    "thinking disabled": messages(user("a"), thinking={"type": "disabled"}),
    "thinking disabled effort": messages(user("a"), thinking={"type": "disabled"}, output_config={"effort": "high"}),
    "thinking enabled": messages(user("a"), thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000),
    "thinking adaptive": messages(user("a"), thinking={"type": "adaptive"}, output_config={"effort": "max"}),
    "effort": messages(user("a"), output_config={"effort": "low"}),
    "output config": messages(
        user("a"), output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}
    ),
    "kwargs": messages(user("a"), chat_template_kwargs={"style": "dry", "enable_thinking": False, "unused": 1}),
    "kwargs null": messages(user("a"), chat_template_kwargs=KWARGS_NULL, output_config={"effort": "low"}),
    "kwargs generation": messages(user("a"), chat_template_kwargs={"add_generation_prompt": False}),
    "kwargs tokenize": messages(user("a"), chat_template_kwargs={"tokenize": True}),
    "kwargs tokenize false": messages(user("a"), chat_template_kwargs={"tokenize": False, "return_dict": True}),
    "ignored fields": messages(
        user("a"),
        stop_sequences=["x"],
        zzz=1,
        session_id="s",
        top_k=3,
        truncate_prompt_tokens=2,
        add_special_tokens=True,
        **NOT_TEMPLATED,
    ),
    "cache control": messages(user([text("a", cache_control=EPHEMERAL)]), cache_salt="salt"),
    "long": messages(*LONG_TALK, user("end"), system=LOREM * 20),
    "name field": messages(user("x", name="bob", tool_calls=[])),
    "image": messages(user([text("a"), IMAGE])),
    "image without source": messages(user([text("a"), {"type": "image"}])),
    "tool reference": answered(result([REFERENCE]), tools=TOOLS),
    "tool reference outside": messages(user([text("a"), REFERENCE])),
    "tool addition": amid(system([ADDITION]), tools=TOOLS),
    "tool use no id": amid(said([{"type": "tool_use", "name": "f", "input": {}}])),
    "unknown block": messages(user([{"type": "document", "source": {}}])),
    "no messages": messages(),
    "bad role": messages(role("tool", "x")),
    "null content": messages(said(None), user("x")),
    "number": messages(user(5)),
    "ids": messages(user("a"), kv_transfer_params={"prompt_token_ids": [5, 6, 7]}),
}
MESSAGES_BY_TEXT = {
    "image", "tool reference", "tool addition", "tool use no id", "unknown block", "bad role", "null content", "number",
    "no messages",
}  # fmt: skip
"""Bodies that are not rendered here; vLLM does not render some of them either."""


# /v1/responses


def heard(words, **fields):
    return {"type": "input_text", "text": words, **fields}


def written(words, **fields):
    return {"type": "output_text", "text": words, **fields}


def item(*parts, by="assistant", **fields):
    return {"type": "message", "role": by, "content": list(parts), **fields}


def output(content, call_id="call_00001", **fields):
    return {"type": "function_call_output", "call_id": call_id, "output": content, **fields}


def reasoned(*texts, **fields):
    content = [{"type": "reasoning_text", "text": words} for words in texts]
    return {"type": "reasoning", **({"content": content} if content else {}), **fields}


def respond(given, **fields):
    return {"input": given, "max_output_tokens": 4, **fields}


def between(*given, **fields):
    """Return a body with these items between two questions."""
    return respond([user("a"), *given, user("c")], **fields)


def called(*given, call=None, **fields):
    """Return a body with a question, a call and these items."""
    return respond([user("a"), call or CALL, *given], **fields)


CALL = {"type": "function_call", "call_id": "call_00001", "name": "weather", "arguments": '{"b": "Köln", "a": 1.50}'}
SECOND = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_00002",
    "name": "clock",
    "arguments": "",
    "status": "completed",
}
SHORT = [{"type": "summary_text", "text": "short"}]
REASON = reasoned("long", "more", id="rs_1", summary=SHORT)
SUMMARY = reasoned(summary=SHORT)
FUNCTIONS = [
    {"type": "function", "name": "weather", "description": "Look\nup", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "clock", "parameters": None},
]
CUSTOM = {"type": "custom_tool_call", "call_id": "call_00001", "name": "patch", "input": "dïff\n"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "call_00001", "output": "ok"}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "d",
    "tools": [{"type": "function", "name": "find", "parameters": SCHEMA}, {"type": "custom", "name": "x"}],
}
DEVELOPER_TOOL = {"type": "function", "function": {"strict": None, "name": "g"}}
WEB_CALL = {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}
LONG_ITEMS = [each for n in range(20) for each in (user(LOREM * 5 + str(n)), item(written(LOREM + str(n))))]

RESPONSES = {
    "string": respond("hi"),
    "empty string": respond(""),
    "instructions": respond("hi", instructions="be brief"),
    "instructions empty": respond("hi", instructions=""),
    "instructions billing": respond("hi", instructions=LINE + "\nrest"),
    "list": respond([user("hi")]),
    "list typed": respond([item(heard("a"), heard("b"), heard(""), by="user")]),
    "list untyped parts": respond([user([heard("a")])]),
    "text type parts": respond([user([text("a")])]),
    "extras": respond([user("x", name="bob", zzz=1, task="k")]),
    "extras in part": respond([user([heard("a", zzz=1, cache_control={})])]),
    "breakpoint in part": respond([user([heard("a", prompt_cache_breakpoint={"mode": "explicit"})])]),
    "status user easy": respond([user("x", status="incomplete")]),
    "status user typed": respond([item(heard("x"), by="user", status="incomplete")]),
    "status completed": respond([item(heard("x"), by="user", status="completed")]),
    "developer": respond([role("developer", "D"), user("x")], instructions="I"),
    "developer tools": respond([role("developer", "D", tools=[DEVELOPER_TOOL]), user("x")]),
    "system": respond([system("S"), user("x")], instructions="I"),
    "system late": between(system([heard("S")])),
    "assistant easy": between(said("b")),
    "assistant easy twice": between(said("b"), said("c")),
    "assistant output": between(item(written("b"), written("ignored"))),
    "assistant output full": between(item(written("b", annotations=[], logprobs=[]), id="msg_1", status="completed")),
    "assistant input_text": between(item(heard("b"))),
    "assistant input_text untyped": between(said([heard("b"), heard("c")])),
    "assistant untyped output_text": between(said([written("b")])),
    "assistant empty list": between(item()),
    "assistant refusal": between(item({"type": "refusal", "refusal": "no"})),
    "assistant empty text": between(item(written(""))),
    "open": respond([user("a"), item(written("The answer "), status="in_progress")]),
    "open incomplete": respond([user("a"), item(written("The answer is"), id="m", status="incomplete")]),
    "open easy": respond([user("a"), said("The answer ", type="message", status="incomplete")]),
    "open easy untyped": respond([user("a"), said("The answer ", status="incomplete")]),
    "open input_text": respond([user("a"), item(heard("The answer "), status="incomplete")]),
    "open not last": between(item(written("The"), status="incomplete")),
    "open reasoning": respond([user("a"), {**REASON, "status": "in_progress"}]),
    "reasoning": between(REASON, item(written("b"))),
    "reasoning summary": between(SUMMARY, item(written("b"))),
    "reasoning empty": between(reasoned(summary=[]), item(written("b"))),
    "reasoning after": between(item(written("b")), REASON, CALL, output("x")),
    "reasoning twice": between(REASON, SUMMARY, item(written("b"))),
    "reasoning encrypted": between({**REASON, "encrypted_content": "zz"}),
    "reasoning no summary": between(reasoned("x")),
    "call": called(output("sunny"), tools=FUNCTIONS),
    "call two": called(SECOND, output("sunny"), output("12", "call_00002"), user("b"), tools=FUNCTIONS),
    "call reasoning text": respond(
        [user("a"), REASON, item(written("let me")), CALL, SECOND, output("sunny"), output("12", "call_00002")],
        tools=FUNCTIONS,
    ),
    "text after call": called(item(written("calling")), output("x")),
    "call namespace": called(output("x"), call={**CALL, "namespace": "crm"}),
    "call bad arguments": called(output("x"), call={**CALL, "arguments": "{nope"}),
    "call first": respond([CALL, output("x"), user("a")]),
    "call no name": called(output("x", "c"), call={"type": "function_call", "call_id": "c", "arguments": "{}"}),
    "output parts": called(output([heard("x"), heard(""), heard("y")])),
    "output parts with id": called(output([heard("x")], id="fco_1", status="completed")),
    "output string with id": called(output("x", id="fco_1", status="completed")),
    "output no call id": called({"type": "function_call_output", "output": "x"}),
    "output call id null": called(output("x", None)),
    "output null": called(output(None)),
    "custom call": called(
        CUSTOM_OUTPUT, call=CUSTOM, tools=[{"type": "custom", "name": "patch", "description": "Freeform"}]
    ),
    "custom output parts": called({**CUSTOM_OUTPUT, "output": [heard("ok")]}, call={**CUSTOM, "input": ""}),
    "tools": respond("a", tools=FUNCTIONS, instructions="I"),
    "tools defer": respond("a", tools=[{**FUNCTIONS[0], "defer_loading": True, "strict": False}]),
    "tools none": respond("a", tools=FUNCTIONS, tool_choice="none"),
    "tools required": respond("a", tools=FUNCTIONS, tool_choice="required"),
    "tools named": respond("a", tools=FUNCTIONS, tool_choice={"type": "function", "name": "clock"}),
    "tools empty": respond("a", tools=[]),
    "tools custom": respond("a", tools=[{"type": "custom", "name": "patch", "format": {"type": "text"}}, FUNCTIONS[0]]),
    "tools namespace": respond("a", tools=[CRM]),
    "tools web": respond("a", tools=[{"type": "web_search"}]),
    "tools chat form": respond("a", tools=[{"type": "function", "function": {"name": "f"}}]),
    "reasoning effort": respond("a", reasoning={"effort": "high", "summary": "auto"}),
    "reasoning effort none": respond("a", reasoning={"effort": "none"}),
    "reasoning null": respond("a", reasoning={"effort": None}),
    "kwargs": respond(
        "a", chat_template_kwargs={"style": "dry", "enable_thinking": True}, reasoning={"effort": "none"}
    ),
    "kwargs null": respond("a", chat_template_kwargs=KWARGS_NULL, reasoning={"effort": "low"}),
    "kwargs tokenize": respond("a", chat_template_kwargs={"tokenize": True}),
    "kwargs generation": respond(
        "a", chat_template_kwargs={"add_generation_prompt": False, "continue_final_message": True}
    ),
    "ignored": respond("a", store=False, user="u", parallel_tool_calls=False, **NOT_TEMPLATED),
    "ignored form": respond("a", truncation="disabled", text={"format": {"type": "text"}}, add_special_tokens=False),
    "truncation auto": respond("a", truncation="auto"),
    "truncation null": respond("a", truncation=None),
    "mm kwargs empty": respond("a", mm_processor_kwargs={}),
    "image": respond(
        [user([heard("a"), {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}])]
    ),
    "file": respond([user([heard("a"), {"type": "input_file", "file_data": "aGk="}])]),
    "previous": respond("a", previous_response_id="resp_1"),
    "item reference": respond([user("a"), {"type": "item_reference", "id": "x"}]),
    "web call": between(WEB_CALL),
    "bad role": respond([role("tool", "x")]),
    "no content": respond([{"role": "user"}]),
    "null content": respond([user(None)]),
    "number": respond([user(5)]),
    "empty list": respond([]),
    "long": respond([*LONG_ITEMS, user("end")], instructions=LOREM * 20),
    "prompt": respond("a", prompt={"id": "p"}),
    "ids": respond("a", kv_transfer_params={"prompt_token_ids": [5, 6, 7]}),
}
RESPONSES_REFUSED = {
    "text type parts", "assistant untyped output_text", "assistant empty list", "assistant refusal",
    "reasoning encrypted", "reasoning no summary", "call no name", "output null", "tools chat form", "prompt",
    "item reference", "web call", "bad role", "no content", "null content", "number", "empty list", "previous", "image",
    "file", "open reasoning",
}  # fmt: skip
"""Bodies that vLLM refuses, always or for this model."""
RESPONSES_BY_TEXT = {"output parts with id", "custom output parts", "tools web"}
"""Bodies that vLLM accepts but that are not rendered here."""


def message_turn(turn, answer):
    """Return what follows an answer: it, a tool use, and the result."""
    use = {**USE, "id": f"toolu_{turn:09}"}
    return [said([*answer["content"], use]), user([result([text(f"result {turn} {LOREM}")], use["id"])])]


def response_turn(turn, answer):
    call = {**CALL, "call_id": f"call_{turn:05}"}
    return [*answer["output"], call, output(f"result {turn} {LOREM}", call["call_id"])]


@dataclass(frozen=True)
class Api:
    """One API: its bodies, and how a conversation goes on in it. The least numbers are of bodies and of answers."""

    path: str
    bodies: dict
    by_text: set
    refused: set
    least_equal: int
    least_compared: int
    question: object
    body: object
    follow: object
    plain: object = field(default=said)


APIS = {
    "messages": Api(
        "/v1/messages", MESSAGES, MESSAGES_BY_TEXT, set(), 50, 150,
        question=lambda words: user([text(words, cache_control=EPHEMERAL)]),
        body=lambda given: messages(*given, system=LOREM * 30, tools=TOOLS), follow=message_turn,
    ),
    "responses": Api(
        "/v1/responses", RESPONSES, RESPONSES_BY_TEXT, RESPONSES_REFUSED, 45, 140,
        question=lambda words: user([heard(words)]),
        body=lambda given: respond(given, instructions=LOREM * 30, tools=FUNCTIONS), follow=response_turn,
        plain=lambda words: item(written(words)),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=["shown", "dump_parts", "instructions"])
def template(request):
    return request.param


@pytest.fixture(scope="module")
def folder(template, model_with):
    return model_with(template, bos=template == "instructions")


@pytest.fixture(scope="module")
def server(vllm, folder):
    return vllm(*FLAGS, model_dir=folder)


@pytest.fixture(params=APIS.values(), ids=APIS)
def api(request):
    return request.param


async def test_a_body_is_rendered_as_vllm_renders_it(template, server, folder, rendering, api):
    seen = await rendering(server, folder, api.path, api.bodies)
    assert not seen.wrong
    assert len(seen.equal) >= api.least_equal
    if template != "instructions":  # refuses many bodies, and vLLM refuses them with it
        assert seen.by_text.keys() - api.refused == api.by_text
        assert seen.refused <= api.refused
        assert len(seen.equal) >= 60


def test_the_prediction_equals_the_report(server, front, api):
    gateway = front(server)
    for name, fields in api.bodies.items():
        for stream in (False, True, False):
            if name in api.refused | api.by_text:
                break
            answer = gateway.send(api.path, {"model": gateway.model, **fields, "stream": stream})
            if answer.status == 400:
                break
            assert answer.status == 200, (name, answer.body)
            gateway.settle()
            gateway.compare(answer, f"{name}, stream={stream}")
    gateway.exact(api.least_compared)


def test_a_conversation_is_predicted_to_the_block(template, server, front, api):
    server.reset_prefix_cache()
    gateway = front(server)
    given = []
    for turn in range(6):
        given.append(api.question(f"Question {turn}: {LOREM}"))
        answer = gateway.ask(api.path, {"model": gateway.model, **api.body(given)})
        if template == "instructions":  # puts the system text into the last question, and accepts no results beside it
            given.append(api.plain(f"Answer {turn}"))
        else:
            assert turn == 0 or answer.reported > 300
            given += api.follow(turn, answer.body)
    gateway.exact(6)
