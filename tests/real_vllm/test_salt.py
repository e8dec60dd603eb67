import pytest

pytestmark = pytest.mark.any_version

PROMPT = "Everything in this text is a secret of one tenant and of nobody else, so it says. " * 20


def test_salts_do_not_share(talk):
    for salt in ("a", "b", None, "a b", "A"):
        fields = {} if salt is None else {"cache_salt": salt}
        assert talk.chat(PROMPT, **fields).reported == 0
        assert talk.chat(PROMPT, **fields).reported > 300
    for salt in ("b", "a", None):
        assert talk.chat(PROMPT + "And more.", **({} if salt is None else {"cache_salt": salt})).reported > 300
    talk.exact(13)


def test_salts_in_completions(talk):
    for salt in ("x", "y", None):
        fields = {} if salt is None else {"cache_salt": salt}
        assert talk.complete(PROMPT, **fields).reported == 0
        assert talk.complete(PROMPT + "More.", **fields).reported > 300
        assert talk.complete([5, 6, 7] * 40, **fields).reported == 0
        assert talk.complete([5, 6, 7] * 40, **fields).reported == 112
    talk.exact(12)


def test_salted_conversations(talk):
    for salt in ("one", "two"):
        messages = []
        for turn in range(4):
            messages.append({"role": "user", "content": f"{turn}: {PROMPT[:400]}"})
            answer = talk.chat(messages, max_tokens=25, cache_salt=salt)
            messages.append({"role": "assistant", "content": answer.text})
    talk.exact(8)


def test_any_text_is_a_salt_of_its_own(talk):
    for salt in ("0", "1", " ", "None", "ü", "x" * 128):
        assert talk.chat(PROMPT, cache_salt=salt).reported == 0
        assert talk.chat(PROMPT, cache_salt=salt).reported > 300
    talk.exact(12)
