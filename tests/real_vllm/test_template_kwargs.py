"""Fields that change the use of a template: an open last message, no generation prompt, and template variables."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.any_version

TEMPLATE = Path(__file__).with_name("templates") / "thinking.jinja"
SYSTEM = "You finish what others have begun, in their own words as far as you can. " * 20


def message(role, content, **fields):
    return {"role": role, "content": content, **fields}


BEGUN = [message("system", SYSTEM), message("user", "Finish this."), message("assistant", "It was a dark and")]


def test_a_prompt_without_a_generation_prompt_is_predicted(talk):
    talk.chat(BEGUN)
    whole = talk.chat(BEGUN, add_generation_prompt=False)
    assert whole.reported > 300
    talk.chat(BEGUN[:2], add_generation_prompt=False)
    talk.chat(BEGUN[:2])
    talk.chat(BEGUN[:2], add_generation_prompt=True)
    talk.exact(5)


def test_a_last_message_that_stays_open(talk):
    for end in ("", " stormy", " stormy night ", " stormy night\n\n", " stormy night. " * 20):
        begun = [*BEGUN[:2], message("assistant", BEGUN[2]["content"] + end)]
        fields = {"add_generation_prompt": False, "continue_final_message": True}
        answer = talk.chat(begun, **fields)
        begun[2]["content"] += answer.text
        talk.chat(begun, **fields)
        talk.chat([*begun, message("user", "Well done.")])
    talk.exact(15)


def test_an_open_last_message_of_the_user(talk):
    for _ in range(2):
        talk.chat(BEGUN[:2], add_generation_prompt=False, continue_final_message=True)
    talk.exact(2)


def test_unknown_template_variables_are_ignored(talk):
    for kwargs in ({}, {"enable_thinking": False}, {"anything": [1, {"a": None}]}, None):
        answer = talk.chat(BEGUN[:2], chat_template_kwargs=kwargs)
    assert answer.reported == (answer.prompt_tokens - 1) // 16 * 16
    talk.exact(4)


def test_a_field_takes_precedence_over_a_variable(talk):
    talk.chat(BEGUN, chat_template_kwargs={"add_generation_prompt": False})
    talk.chat(BEGUN, chat_template_kwargs={"add_generation_prompt": False}, add_generation_prompt=True)
    talk.chat(BEGUN, chat_template_kwargs={"add_generation_prompt": True}, add_generation_prompt=False)
    talk.exact(3)


@pytest.mark.parametrize(
    "fields",
    [
        {"add_special_tokens": True},
        {"documents": [{"title": "a", "text": "b"}]},
        {"reasoning_effort": "low"},
        {"truncate_prompt_tokens": 200},
        {"truncate_prompt_tokens": -1},
    ],
    ids=lambda fields: "-".join(map(str, next(iter(fields.items())))),
)
def test_other_fields_that_may_change_a_prompt(talk, fields):
    for _ in range(2):
        talk.chat(BEGUN[:2], **fields)
        talk.chat(BEGUN[:2])
    talk.exact(4)


@pytest.fixture(scope="module")
def thinking_server(vllm):
    return vllm("--chat-template", str(TEMPLATE))


@pytest.fixture
def thinking(thinking_server, front):
    flags = ("--set", f"models.warmroute-simulated.chat_template={TEMPLATE}")
    return front(thinking_server, flags=flags)


def test_template_variables_are_predicted(thinking):
    messages = [message("system", SYSTEM), message("user", "Think of a number. " * 3)]
    for kwargs in ({"enable_thinking": True}, {"enable_thinking": False}, {}, {"enable_thinking": False, "other": 1}):
        thinking.chat(messages, chat_template_kwargs=kwargs)
        thinking.chat(messages, chat_template_kwargs=kwargs)
    for effort in ("none", "low", "high"):
        thinking.chat(messages, reasoning_effort=effort)
        thinking.chat(messages, reasoning_effort=effort, chat_template_kwargs={"enable_thinking": False})
    for role in ("system", "user"):
        thinking.chat([message(role, "number " * 50)], chat_template_kwargs={"enable_thinking": None})
    thinking.exact(16)


def test_thinking_dropped_from_the_history_is_predicted(thinking):
    messages = [message("system", SYSTEM)]
    for turn in range(5):
        messages.append(message("user", f"Think of number {turn}. " * 5))
        answer = thinking.chat(messages, max_tokens=30)
        thought = f"<think>\nWhat of {answer.text}?\n</think>\n\n" if turn % 2 else ""
        messages.append(message("assistant", thought + answer.text))
        thinking.chat(messages, add_generation_prompt=False, continue_final_message=not thought)
    messages[-1] = message("assistant", "Seven.", reasoning_content="It is odd.")
    thinking.chat([*messages, message("user", "Why?")])
    thinking.exact(11)
