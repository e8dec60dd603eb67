import pytest

pytestmark = pytest.mark.any_version

PROMPT = "Everything in this text is a secret of one tenant and of nobody else, so it says. " * 20


def salted(salt):
    return {} if salt is None else {"cache_salt": salt}


def test_any_text_is_a_salt_that_shares_nothing(talk):
    for salt in ("a", "b", None, "a b", "A", "0", "1", " ", "None", "ü", "x" * 128):
        assert talk.chat(PROMPT, **salted(salt)).reported == 0
        assert talk.chat(PROMPT, **salted(salt)).reported > 300
    for salt in ("b", "a", None):
        assert talk.chat(PROMPT + "And more.", **salted(salt)).reported > 300
    talk.exact(25)


def test_salts_in_completions(talk):
    for salt in ("x", "y", None):
        assert talk.complete(PROMPT, **salted(salt)).reported == 0
        assert talk.complete(PROMPT + "More.", **salted(salt)).reported > 300
        assert talk.complete([5, 6, 7] * 40, **salted(salt)).reported == 0
        assert talk.complete([5, 6, 7] * 40, **salted(salt)).reported == 112
    talk.exact(12)


def test_salted_conversations(talk):
    for salt in ("one", "two"):
        messages = []
        for turn in range(4):
            talk.turn(messages, f"{turn}: {PROMPT[:400]}", max_tokens=25, cache_salt=salt)
    talk.exact(8)
