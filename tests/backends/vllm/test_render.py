"""Chat bodies to prompt text, over templates with the features of the common families, all written here."""

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

import backends.simulated
from backends.vllm.render import ChatRenderer, Unrenderable, gives_token_ids
from backends.vllm.templates import MAX_RENDERED_CHARS, MAX_REPEATED_ITEMS, ChatTemplate

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""

HEADERS_TRIMMED = """\
{{- bos_token }}
{%- if tools is not none %}
    {{- "<|head|>tools<|/head|>\\n" }}
    {%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ "\\n" }}{% endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n' + message['content'] | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{%- endif %}"""

INSTRUCTIONS = """\
{%- if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}
{%- else %}{% set system, rest = none, messages %}{% endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user and assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if system and loop.last else '') + message.content + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

TOOLS_SORTED_LATE = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if loop.index0 == ns.last and tools %}
        {{- '<tools>' }}
        {%- for t in tools | sort(attribute='function.name') %}{{ t | tojson }}{% endfor %}
        {{- '</tools>' }}
    {%- endif %}
    {{- '<' + m.role + '>' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}{{ '{' + call.id + ':' + (call.function | tojson) + '}' }}{% endfor %}
    {{- '</>' }}
{%- endfor %}"""

THINKING_STRIPPED = """\
{%- set ns = namespace(user=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set text = m.content %}
    {%- if m.role == 'assistant' %}
        {%- set thought = m.reasoning_content if m.reasoning_content is defined else '' %}
        {%- if '</think>' in text %}
            {%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.user and thought %}{% set text = '<think>' + thought + '</think>' + text %}{% endif %}
    {%- endif %}
    {{- '<' + m.role + '>' + text }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think></think>' }}{% endif %}
{%- endif %}"""

PARTS = """\
{%- for message in messages %}
{{- '<' + message.role + '>' }}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{{ '[' + part.type + ' ' + part.text + ']' }}{% endfor %}{% endif %}
{%- endfor %}"""


def renderer(template: str, tmp_path: Path, **config: object) -> ChatRenderer:
    (tmp_path / "tokenizer.json").write_bytes((MODEL_DIR / "tokenizer.json").read_bytes())
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**named, "chat_template": template, **config}))
    return ChatRenderer.load(tmp_path)


def messages(*turns: tuple[str, object]) -> dict[str, object]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


TOOL = {"type": "function", "function": {"parameters": {"type": "object", "b": "<é>"}, "name": "weather", "x": 1}}
SHOWN = (
    '{"type": "function", "function": {"name": "weather", "description": null, '
    '"parameters": {"type": "object", "b": "<é>"}}}'
)


def test_chatml(tmp_path: Path) -> None:
    render = renderer(CHATML, tmp_path).render
    text = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n hi <|im_end|>\n"
    body = messages(("system", "be brief"), ("user", " hi "))
    assert render(body) == text + "<|im_start|>assistant\n"
    assert render({**body, "add_generation_prompt": False}) == text
    assert (
        render({**body, "chat_template_kwargs": {"add_generation_prompt": False}}) == text + "<|im_start|>assistant\n"
    )


def test_headers_with_trimmed_text_and_tools(tmp_path: Path) -> None:
    render = renderer(HEADERS_TRIMMED, tmp_path).render
    body = messages(("user", "  hi\n"), ("assistant", "yes "))
    assert render(body).startswith("<s><|head|>user<|/head|>\n\nhi<|end|><|head|>assistant<|/head|>\n\nyes<|end|>")
    rendered = render({**body, "tools": [TOOL]})
    assert (
        '<|head|>tools<|/head|>\n{\n    "type": "function",\n    "function": {\n        "name": "weather",' in rendered
    )
    assert '"description": null' in rendered and "<é>" in rendered and '"x"' not in rendered


def test_instructions_raise_on_odd_turns(tmp_path: Path) -> None:
    render = renderer(INSTRUCTIONS, tmp_path).render
    body = messages(("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"))
    assert render(body) == "<s>[INST] a [/INST] b</s>[INST] S\n\nc [/INST]"
    with pytest.raises(Unrenderable, match="must alternate") as caught:
        render(messages(("user", "a"), ("user", "b")))
    assert caught.value.refused


def test_tools_reordered_and_put_late(tmp_path: Path) -> None:
    render = renderer(TOOLS_SORTED_LATE, tmp_path).render
    other = {"type": "function", "function": {"name": "alarm", "strict": True}}
    call = {
        "type": "function",
        "id": "c1",
        "function": {"name": "weather", "arguments": '{"b": 1, "a": "é"}'},
        "index": 0,
    }
    body = {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
            {"role": "user", "content": "two"},
        ],
        "tools": [TOOL, other],
    }
    alarm = (
        '{"type": "function", "function": {"name": "alarm", "description": null, "parameters": null, "strict": true}}'
    )
    assert render(body) == (
        '<user>one</><assistant>{c1:{"arguments": {"b": 1, "a": "é"}, "name": "weather"}}</><tool>42</>'
        f"<tools>{alarm}{SHOWN}</tools><user>two</>"
    )


def test_thinking_is_stripped_from_earlier_turns(tmp_path: Path) -> None:
    render = renderer(THINKING_STRIPPED, tmp_path).render
    body = messages(("user", "q"), ("assistant", "<think>\nhm\n</think>\n\nA"), ("user", "r"))
    assert render(body) == "<user>q<assistant>A<user>r<assistant>"
    assert render(messages(("user", "q"), ("assistant", "<think>hm</think>A"))).startswith(
        "<user>q<assistant><think>hm</think>A"
    )
    reasoned = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "A", "reasoning": "hm"}]
    }
    assert render(reasoned) == "<user>q<assistant><think>hm</think>A<assistant>"
    for field in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        assert render({**body, **field}).endswith("<assistant><think></think>")
    kept = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    assert render({**body, **kept}).endswith("<user>r<assistant>")


def test_content_as_parts_only_where_the_template_walks_over_them(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "input_text", "text": "b"}, "c"]
    assert renderer(PARTS, tmp_path).render(messages(("user", parts), ("user", "x"), ("tool", parts))) == (
        "<user>[text a][text ][text b][text c]<user>[text x]<tool>a\n\nb\nc"
    )
    chatml = renderer(CHATML, tmp_path).render(messages(("user", parts), ("assistant", None)))
    assert chatml.startswith("<|im_start|>user\na\nb\nc<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n")


def walk(expression: str) -> str:
    return "{% for c in " + expression + " %}{{ c.text }}{% endfor %}"


def each_message(body: str, expression: str = "messages") -> str:
    return "{% for m in " + expression + " %}" + body + "{% endfor %}"


@pytest.mark.parametrize(
    ("source", "walks"),
    [
        (CHATML, False),
        (PARTS, True),
        (each_message("{% set content = m.content %}" + walk("content")), True),
        ("{% set ns = namespace(rest=messages) %}" + each_message(walk("m['content']"), "ns.rest"), True),
        ("{% set rest = messages[1:] %}" + each_message(walk("m.content"), "rest | list"), True),
        ("{% macro f(x) %}" + walk("x") + "{% endmacro %}" + each_message("{{ f(m.content) }}"), True),
        ("{% macro f(x) %}" + walk("x") + "{% endmacro %}" + each_message("{{ f(x=m.content) }}"), True),
        ("{% macro f(content) %}" + walk("content") + "{% endmacro %}{{ f(tools) }}", False),
        (each_message(walk("m.tool_calls")), False),
        ("{% for a, b in tools %}{% endfor %}" + each_message("{{ m.content }}"), False),
    ],
)
def test_detection_of_parts(source: str, walks: bool) -> None:
    assert ChatTemplate(source).wants_parts is walks


def test_final_message_left_open(tmp_path: Path) -> None:
    body = {
        **messages(("user", "q"), ("assistant", "The answer ")),
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert renderer(CHATML, tmp_path).render(body).endswith("<|im_start|>assistant\nThe answer ")
    assert renderer(HEADERS_TRIMMED, tmp_path).render(body).endswith("assistant<|/head|>\n\nThe answer")
    assert renderer(PARTS, tmp_path).render(body).endswith("<assistant>[text The answer ")
    with pytest.raises(Unrenderable, match="exclude each other"):
        renderer(CHATML, tmp_path).render({**body, "add_generation_prompt": True})
    with pytest.raises(Unrenderable, match="drops the end"):
        renderer("{{ messages[0].content }}", tmp_path).render(body)
    with pytest.raises(Unrenderable, match="no text"):
        renderer(PARTS, tmp_path).render({**body, "messages": [{"role": "assistant", "content": None}]})


def test_developer_role(tmp_path: Path) -> None:
    body = messages(("system", "S"), ("user", "q"), ("developer", "D"), ("user", "r"))
    plain = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    assert renderer(plain, tmp_path).render(body) == "system:S\n\nD;user:q;user:r;"
    assert renderer(plain, tmp_path).render(messages(("developer", "D"), ("user", "q"))) == "system:D;user:q;"
    assert renderer(plain + "{# 'developer' #}", tmp_path).render(body) == "system:S;user:q;developer:D;user:r;"


def test_a_line_that_changes_with_every_request_is_dropped(tmp_path: Path) -> None:
    render = renderer("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", tmp_path).render
    line = "x-anthropic-billing-header: cch=1"
    assert render(messages(("system", f"{line}\nS"), ("user", line))) == f"system:S;user:{line};"
    assert render(messages(("system", [{"type": "text", "text": line}, {"type": "text", "text": "S"}]))) == "system:S;"
    assert (
        render(messages(("system", line), ("system", [{"type": "refusal", "refusal": line}])))
        == f"system:;system:{line};"
    )


def test_fields_that_vllm_keeps_reach_the_template(tmp_path: Path) -> None:
    render = renderer("{% for m in messages %}{{ m | tojson }}{% endfor %}{# developer 'developer' #}", tmp_path).render
    tool = {"type": "function", "function": {"strict": True, "name": "g", "x": 1}}
    body = {
        "messages": [
            {"content": "D", "role": "developer", "tools": [tool], "zzz": 1},
            {"name": "bob", "role": "user", "content": [{"type": "text", "text": "u", "cache_control": {}}]},
            {"role": "assistant", "content": None, "reasoning": "with null content"},
            {"role": "assistant", "reasoning_content": "kept"},
            {"role": "tool", "content": "t", "tool_call_id": "c", "task": "k"},
        ]
    }
    assert render(body) == (
        '{"role": "developer", "content": "D", '
        '"tools": [{"function": {"name": "g", "strict": true, "x": 1}, "type": "function"}]}'
        '{"role": "user", "content": "u", "name": "bob"}'
        '{"role": "assistant", "content": "", "reasoning": "with null content", '
        '"reasoning_content": "with null content"}'
        '{"role": "assistant", "content": "", "reasoning": "kept", "reasoning_content": "kept"}'
        '{"role": "tool", "content": "t", "tool_call_id": "c", "task": "k"}'
    )


def test_template_variables_follow_vllm(tmp_path: Path) -> None:
    source = "{{ bos_token }}|{{ eos_token }}|{{ (documents or []) | length }}|{{ style }}|{{ reasoning_effort }}"
    render = renderer(source, tmp_path).render
    body = messages(("user", "x"))
    assert render(body) == "<s>|</s>|0||"
    full = {
        "documents": [{"text": "d"}],
        "chat_template_kwargs": {"style": "dry", "unused": 1},
        "reasoning_effort": "low",
    }
    assert render({**body, **full}) == "<s>|</s>|1|dry|low"


def test_the_template_language_has_transformers_extensions(tmp_path: Path) -> None:
    cases = {
        "{% for n in range(9) %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% endfor %}": "02345678",
        "{% for n in range(9) %}{% if n == 4 %}{% break %}{% endif %}{{ n }}{% endfor %}": "0123",
        "{% generation %}said{% endgeneration %}": "said",
        "{{ dict(a='<b>&') | tojson }}": '{"a": "<b>&"}',
        "{{ 'é' | tojson }}{{ 'é' | tojson(ensure_ascii=true) }}": '"é""\\u00e9"',
        "{{ strftime_now('%Y') }}": datetime.now().strftime("%Y"),
        "  {% if true %}\n  x\n  {% endif %}\n": "  x\n",
        "{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ 3 * 'x' }}": "ababab1024xxx",
    }
    for source, text in cases.items():
        made = renderer(source, tmp_path)
        assert made.render(messages(("user", "x"))) == text
        assert made.reads_clock == ("strftime_now" in source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ (1).__class__.__base__.__subclasses__() }}",
        "{{ 1 / 0 }}",
        "{{ missing.attribute }}",
        "{{ range(1000000) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        f"{{{{ 'x' * {MAX_REPEATED_ITEMS + 1} }}}}",
        f"{{{{ {MAX_REPEATED_ITEMS + 1} * [1] }}}}",
        "{{ 10 ** 100000 }}",
        "{% for n in range(100) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{% include 'other' %}",
    ],
)
def test_templates_cannot_break_out_or_blow_up(tmp_path: Path, source: str) -> None:
    assert MAX_RENDERED_CHARS < 100 * MAX_REPEATED_ITEMS
    with pytest.raises(Unrenderable):
        renderer(source, tmp_path).render(messages(("user", "x")))


@pytest.mark.parametrize("source", ["{% if %}", "{{", "{% for m in messages %}", "{% unknown %}"])
def test_a_broken_template_is_unrenderable(tmp_path: Path, source: str) -> None:
    with pytest.raises(Unrenderable, match="does not compile"):
        renderer(source, tmp_path)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "x"},
        {"messages": [1]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "uuid": "u"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": 7}]},
        {"messages": [{"role": "assistant", "reasoning": {"type": "prompt_embeds"}}]},
        {**messages(("user", "x")), "tools": {}},
        {**messages(("user", "x")), "tools": [1]},
        {**messages(("user", "x")), "chat_template": "tool_use"},
        {**messages(("user", "x")), "chat_template": "{{"},
        {**messages(("user", "x")), "chat_template": 5},
        {**messages(("user", "x")), "mm_processor_kwargs": {"a": 1}},
        {**messages(("user", "x")), "chat_template_kwargs": {"messages": []}},
        {**messages(("user", "x")), "chat_template_kwargs": {"tools": []}},
        {**messages(("user", "x")), "chat_template_kwargs": {"tokenize": True, "truncation": True}},
        {**messages(("user", "x")), "chat_template_kwargs": 5},
    ],
)
def test_a_body_with_unknown_content_is_unrenderable(tmp_path: Path, body: dict) -> None:
    with pytest.raises(Unrenderable):
        renderer(CHATML, tmp_path).render(body)


@pytest.mark.parametrize("arguments", [None, "", "{}", "[1]", "no json", {}])
def test_odd_arguments_count_as_none(tmp_path: Path, arguments: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = {"messages": [{"role": "assistant", "content": "x", "tool_calls": [call]}]}
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert renderer(source, tmp_path).render(body) == "{}"


def test_empty_tool_calls_are_no_tool_calls(tmp_path: Path) -> None:
    body = {"messages": [{"role": "assistant", "content": "x", "tool_calls": []}]}
    assert renderer("{{ 'tool_calls' in messages[0] }}", tmp_path).render(body) == "False"


def test_the_shipped_template_only_ever_appends() -> None:
    render = ChatRenderer.load(MODEL_DIR).render
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    turns = [
        {"role": "system", "content": " S\n"},
        {"role": "user", "content": "\n q  "},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "1"},
        {"role": "assistant", "content": "warm "},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    body = {"tools": [TOOL], "add_generation_prompt": False}
    texts = [render({**body, "messages": turns[:count]}) for count in range(1, 7)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
    assert SHOWN in texts[0] and "<|im_start|>system\n S\n<|im_end|>\n" in texts[0]
    assert '<call>{"name": "weather", "arguments": {"city": "Köln"}}</call><|im_end|>' in texts[2]
    assert texts[5].endswith("<|im_start|>user\na\nb<|im_end|>\n")
    assert render({**body, "messages": turns, "add_generation_prompt": True}) == texts[5] + "<|im_start|>assistant\n"


def test_a_template_in_the_request_is_run(tmp_path: Path) -> None:
    render = renderer(CHATML, tmp_path).render
    given = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}{{ bos_token }}"
    body = {**messages(("user", "x")), "chat_template": given, "mm_processor_kwargs": {}}
    assert render(body) == render(body) == "(x)<s>"
    assert render(messages(("user", "x"))).startswith("<|im_start|>user")


def test_arguments_of_transformers_are_not_variables(tmp_path: Path) -> None:
    source = "{{ tokenize is defined }}{{ return_dict is defined }}{{ max_length is defined }}{{ messages[0].content }}"
    render = renderer(source, tmp_path).render
    for kwargs in ({"tokenize": True, "return_dict": True}, {"tokenize": False, "max_length": 5}, {"padding": True}):
        assert render({**messages(("user", "x")), "chat_template_kwargs": kwargs}) == "FalseFalseFalsex"
        assert gives_token_ids(kwargs) is bool(kwargs.get("tokenize"))
    assert not gives_token_ids(None) and not gives_token_ids("odd")


@pytest.mark.parametrize("name", ["'role'", "'absent'", "'items'", "'__class__'", "0", "['a']"])
@pytest.mark.parametrize("owner", ["message", "message['role']", "messages", "absent"])
def test_an_item_is_what_the_sandbox_returns(name, owner):
    source = f"{{{{ {owner}[{name}] is defined }}}} {{{{ {owner}[{name}] is string }}}}"
    variables = {"messages": [{"role": "user"}], "message": {"role": "user"}}
    expected = outcome(lambda: ImmutableSandboxedEnvironment().from_string(source).render(variables))
    assert outcome(lambda: ChatTemplate(source).render(variables)) == expected


def outcome(render):
    try:
        return render()
    except (SecurityError, UndefinedError, Unrenderable):
        return "refused"
