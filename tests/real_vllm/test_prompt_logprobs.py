"""Requests for which vLLM computes the whole prompt again: they read no cache and still write it."""

import pytest

pytestmark = pytest.mark.any_version

PROMPT = "A prompt whose every token is to be weighed cannot be taken from a cache. " * 15


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 0}, {"prompt_logprobs": 1}], ids=["none", "one"])
def test_prompt_logprobs_read_nothing_and_write_all(talk, fields):
    if talk.send("/v1/completions", {"model": talk.model, "prompt": "a", "max_tokens": 1, **fields}).status != 200:
        pytest.skip("clock mode computes no log-probabilities")
    for ask in (talk.chat, talk.complete):
        assert ask(PROMPT, **fields).reported == 0
        assert ask(PROMPT, **fields).reported == 0
        assert ask(PROMPT).reported > 200
        assert ask(PROMPT, **fields).reported == 0
    talk.exact(8)


def test_an_echoed_prompt_reads_nothing(talk):
    assert talk.complete(PROMPT, echo=True).reported == 0
    assert talk.complete(PROMPT, echo=True).reported > 200
    assert talk.complete(PROMPT).reported > 200
    talk.chat([{"role": "user", "content": PROMPT}], echo=True)
    talk.chat([{"role": "user", "content": PROMPT}], echo=True)
    talk.chat([{"role": "user", "content": PROMPT}])
    talk.exact(6)
