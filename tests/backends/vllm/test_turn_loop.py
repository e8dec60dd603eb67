"""What is proven of a template holds: the text of new messages is the same beside the first one as beside all."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backends.simulated
from backends.vllm.templates import ChatTemplate
from backends.vllm.unrenderable import Unrenderable

REAL = {path.stem: path.read_text() for path in Path(__file__).parents[2].glob("real_vllm/templates/*.jinja")}
SHIPPED = Path(backends.simulated.__file__).with_name("model") / "tokenizer_config.json"
LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN_2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PHI_3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
REAL_LOCAL = ("chatml", "developer", "dump", "dump_parts", "generation", "shown")
LOCAL = {
    "shipped": json.loads(SHIPPED.read_text())["chat_template"],
    "llama 3": LLAMA_3,
    "qwen 2": QWEN_2,
    "phi 3": PHI_3,
    **{name: REAL[name] for name in REAL_LOCAL},
    "variables of a pass": "{% set n = 0 %}{% for m in messages %}{{ n }}{{ seen }}{% set n = n + 1 %}"
    "{% set seen = m.role %}{% endfor %}",
    "a variable in a branch": "{% for m in messages %}{% if m.role == 'user' %}{% set u = 1 %}{% endif %}"
    "{{ u }}{% endfor %}{{ u }}",
    "the target after the loop": "{% for m in messages %}{{ m.content }}{% endfor %}{{ m }}",
    "a macro": "{% macro show(m, first) %}[{{ m.content }}{{ first }}]{% endmacro %}"
    "{% for m in messages %}{{ show(m, loop.first) }}{% endfor %}{{ show(messages[0], 1) }}",
    "an inner loop": "{% for m in messages %}{% for c in m.content %}{{ c }}{{ loop.index }}"
    "{% if not loop.last %},{% endif %}{% endfor %}{% endfor %}",
    "a name that is set in the loop and behind it": "{% for m in messages %}{% set n = m.role %}{{ n }}{% endfor %}"
    "{% set n = 1 %}",
    "a second pass": "{% for m in messages %}{% if loop.index == 1 %}!{% endif %}{% if loop.index0 != 0 %}?"
    "{% endif %}{{ m.role }}{% endfor %}",
    "a pass over": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}"
    "{% endfor %}",
    "a refusal": "{% for m in messages %}{% if 'a' in m.content %}{{ raise_exception('a') }}{% endif %}"
    "{{ m.role }}{% endfor %}",
    "trims at its end": "{% for m in messages -%}\n {{ m.content }} \n{%- endfor -%}\n\n end",
    "a filter block": "{% for m in messages %}{% filter upper %}{{ m.content }}{% endfilter %}{% endfor %}",
    "a list of its own": "{% set names = ['a', 'b'] %}{% for m in messages %}{{ names | map('upper') | join }}"
    "{{ m.role }}{% endfor %}",
}
LOOP = "{%% for m in messages %%}%s{%% endfor %%}"
NOT_LOCAL = {
    **{name: template for name, template in REAL.items() if name not in REAL_LOCAL},
    "the outer loop in an else": LOOP % "{% for c in m.calls %}{{ c }}{% else %}{{ loop.last }}{% endfor %}",
    "the outer loop in a filter": LOOP % "{% for c in [1] if loop.last %}{{ m.content }}{% endfor %}",
    "a name that is set behind the loop": LOOP % "{% if tools %}{{ m.content }}{% endif %}" + "{% set tools = none %}",
    "a macro behind the loop": LOOP % "{{ show is defined }}" + "{% macro show() %}{% endmacro %}",
    "a random item": LOOP % "{{ [[1, 2]] | map('random') | join }}",
    "the last pass": LOOP % "{% if loop.last %}!{% endif %}{{ m.content }}",
    "a number": LOOP % "{{ loop.index }}",
    "turns that alternate": LOOP % "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('') }}{% endif %}",
    "a later pass": LOOP % "{% if loop.index0 == 1 %}!{% endif %}",
    "the neighbour": LOOP % "{{ loop.previtem.role }}",
    "a cycle": LOOP % "{{ loop.cycle('a', 'b') }}",
    "a change": LOOP % "{% if loop.changed(m.role) %}!{% endif %}",
    "the loop itself": LOOP % "{% set l = loop %}{{ l.index }}",
    "an outer loop": LOOP % "{% set outer = loop %}{% for c in m.content %}{{ outer.index }}{% endfor %}",
    "an inner list": LOOP % "{% for c in range(loop.index) %}.{% endfor %}",
    "the length": LOOP % "{{ messages | length }}",
    "the last message": LOOP % "{{ m.role }}" + "{{ messages[-1].role }}",
    "the second message": LOOP % "{{ m.role }}" + "{{ messages[1].role }}",
    "true as a place": LOOP % "{{ messages[false].role }}",
    "all messages": "{{ messages }}" + LOOP % "{{ m.role }}",
    "the rest": "{% for m in messages[1:] %}{{ m.role }}{% endfor %}",
    "the rest by name": "{% set rest = messages[1:] %}{% for m in rest %}{{ m.role }}{% endfor %}",
    "other messages by the same name": "{% set messages = messages[1:] %}" + LOOP % "{{ m.role }}",
    "a name for two lists": "{% set l = messages %}{% if tools %}{% set l = tools %}{% endif %}"
    "{% for m in l %}{{ m.role }}{% endfor %}",
    "a name set later": "{% for m in messages %}{{ m.role }}{{ l }}{% endfor %}{% set l = messages %}{{ l }}",
    "two loops": LOOP % "{{ m.role }}" + LOOP % "{{ m.role }}",
    "a loop in a branch": "{% if messages[0] %}" + LOOP % "{{ m.role }}" + "{% endif %}",
    "some messages": "{% for m in messages if m.role == 'user' %}{{ m.role }}{% endfor %}",
    "the other messages": "{% for m in messages | rejectattr('role', 'equalto', 'user') %}{{ m.role }}{% endfor %}",
    "no message": "{% for m in messages %}{{ m.role }}{% else %}none{% endfor %}",
    "a loop in itself": "{% for m in messages recursive %}{{ m.role }}{% endfor %}",
    "the end of the loop": LOOP % "{% if m.role == 'tool' %}{% break %}{% endif %}{{ m.role }}",
    "the same name": "{% for messages in messages %}{{ messages[0] }}{% endfor %}",
    "parts of pairs": "{% for messages, b in messages %}{{ messages[0] }}{% endfor %}",
    "a macro's messages": "{% macro f(messages) %}{{ messages[0] }}{% endmacro %}" + LOOP % "{{ f([m]) }}",
    "a macro with all": "{% macro f() %}{{ messages | length }}{% endmacro %}" + LOOP % "{{ f() }}",
    "a macro given all": "{% macro f(l) %}{{ l | length }}{% endmacro %}" + LOOP % "{{ f(messages) }}",
    "a namespace": "{% set ns = namespace(n=0) %}" + LOOP % "{{ ns.n }}{% set ns.n = ns.n + 1 %}",
    "a cycler": "{% set c = cycler('a', 'b') %}" + LOOP % "{{ c.next() }}",
    "a joiner": "{% set j = joiner() %}" + LOOP % "{{ j() }}{{ m.role }}",
    "a list that is used up": "{% set l = ['a', 'b', 'c'] | map('upper') %}" + LOOP % "{{ l | first }}",
    "a list that is used up backwards": "{% set l = [1, 2, 3] | reverse %}" + LOOP % "{{ l | first }}",
    "a list that is used up within": "{% set l = [['a', 'b'] | select] %}" + LOOP % "{{ l[0] | first }}",
    "a default that is used up": "{% macro f(l=['a', 'b'] | map('upper')) %}{{ l | first }}"
    "{% endmacro %}" + LOOP % "{{ f() }}",
    "chance": LOOP % "{{ [1, 2] | random }}",
    "a block": "{% block b %}" + LOOP % "{{ m.role }}" + "{% endblock %}",
    "a scope": "{% with n = 1 %}" + LOOP % "{{ n }}" + "{% endwith %}",
}  # fmt: skip
MESSAGES = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
    st.text("ab \n<|", max_size=6),
)


compiled = lru_cache(ChatTemplate)


def rendered(render: Any, messages: list[dict[str, Any]], ends: bool) -> str | None:
    variables = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>"}
    try:
        return render({**variables, "messages": messages, "add_generation_prompt": ends})
    except Unrenderable:
        return None


@pytest.mark.parametrize("name", LOCAL)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=7), known=st.integers(1, 7), ends=st.booleans())
def test_turns_are_rendered_beside_the_first_as_beside_all(name, messages, known, ends):
    template = compiled(LOCAL[name])
    assert template.is_turn_local
    whole, first = rendered(template.render, messages, ends), rendered(template.render_turns, messages[:1], ends)
    before = rendered(template.render_turns, messages[:known], ends)
    after = rendered(template.render_turns, messages[:1] + messages[known:], ends)
    alone = rendered(template.render, messages[:1], ends)
    if before is None or after is None or alone is None:
        assert whole is None
    else:
        assert first is not None and alone.startswith(first) and after.startswith(first)
        assert whole == before + after[len(first) :] + alone[len(first) :]


@pytest.mark.parametrize("name", NOT_LOCAL)
def test_without_proof_a_template_is_not_turn_local(name):
    assert not ChatTemplate(NOT_LOCAL[name]).is_turn_local
