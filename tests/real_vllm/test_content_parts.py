import pytest

pytestmark = pytest.mark.any_version

SYSTEM = "You translate from any language into any other, word by word where you can. " * 20


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def message(role, content):
    return {"role": role, "content": content}


def test_one_text_part_equals_plain_text(talk):
    for content in ("good morning", parts("good morning"), parts("good morning")):
        talk.chat([message("system", SYSTEM), message("user", content)])
        answer = talk.chat([message("system", parts(SYSTEM)), message("user", content)])
        assert answer.reported == (answer.prompt_tokens - 1) // 16 * 16
    talk.exact(6)


def test_several_parts_are_predicted(talk):
    for texts in (("good", "morning"), ("", "morning"), ("good", ""), ("good\n", "\nmorning"), (" a ", "b", " c")):
        talk.chat([message("system", SYSTEM), message("user", parts(*texts))])
        answer = talk.chat([message("system", SYSTEM), message("user", "\n".join(filter(None, texts)))])
        assert answer.reported == (answer.prompt_tokens - 1) // 16 * 16
    talk.exact(10)


def test_parts_in_every_role_are_predicted(talk):
    messages = [message("system", parts(SYSTEM, "Be brief."))]
    for turn in range(5):
        messages.append(message("user", parts(f"Word {turn}", "and its plural")))
        answer = talk.chat(messages, max_tokens=20)
        messages.append(message("assistant", parts(answer.text, "I think.")))
    messages.append(message("tool", parts("nothing", "found")) | {"tool_call_id": "call_1"})
    talk.chat(messages)
    talk.exact(6)


def test_parts_with_other_fields_and_types_are_predicted(talk):
    content = [{"type": "text", "text": "good", "cache_control": {"type": "ephemeral"}}]
    for _ in range(2):
        talk.chat([message("system", SYSTEM), message("user", content)])
    answer = message("assistant", [{"type": "refusal", "refusal": "I had rather not."}])
    talk.chat([message("system", SYSTEM), message("user", "now"), answer, message("user", "do")])
    talk.exact(3)
