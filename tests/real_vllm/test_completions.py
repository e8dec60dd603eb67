import httpx
import pytest

pytestmark = pytest.mark.any_version

TEXT = "Once upon a time a router looked for the worker that knew the story already. " * 12


@pytest.fixture
def ids(plain, talk):
    """Return a function from text to the model's token ids, as the server makes them."""

    def encode(text):
        return httpx.post(f"{plain.url}/tokenize", json={"model": talk.model, "prompt": text}).json()["tokens"]

    return encode


def test_growing_text_is_predicted(talk):
    for words in range(0, 60, 4):
        talk.complete(TEXT + "and so " * words)
    for text in ("once", "Once", " Once", TEXT[1:], TEXT + "\n", "é" * 40, "<|im_end|>" * 40):
        talk.complete(text)
        talk.complete(text)
    talk.exact(29)


def test_a_continued_answer_is_predicted(talk):
    text = TEXT
    for _ in range(8):
        text += talk.complete(text, max_tokens=33).text
    talk.exact(8)


def test_token_ids_and_equal_text_share_blocks(talk, ids):
    tokens = ids(TEXT)
    assert talk.complete(tokens).reported == 0
    assert talk.complete(TEXT).reported == talk.complete(tokens).reported == (len(tokens) - 1) // 16 * 16
    for end in range(1, 100, 9):
        talk.complete([*tokens[:-end], 77, 78, 79])
    talk.exact(14)


def test_the_tokenizers_special_tokens_are_predicted(talk):
    for flag in (True, False, True, False):
        talk.complete(TEXT, add_special_tokens=flag)
    talk.exact(4)


def test_lists_of_one_prompt_are_predicted(talk, ids):
    tokens = ids(TEXT)
    for prompt in (TEXT, [TEXT], [tokens], tokens, [TEXT], [tokens]):
        talk.complete(prompt)
    talk.exact(6)


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
def test_of_several_prompts_the_last_is_reported(talk, ids, as_ids):
    """A whole answer reports the last prompt, which may find the blocks of the prompts before it."""

    def several(*texts):
        return talk.complete([ids(text) for text in texts] if as_ids else list(texts))

    known, new, other = TEXT, "Twice upon " + TEXT, "Thrice " + TEXT
    talk.complete(known)
    assert several(known, new).reported == 0
    assert several("Never " + new, known).reported > 0
    several(known, other)
    several(known, other)
    several(other + " the end", other + " the beginning", known + " at all")
    assert several("Nobody " + TEXT + " left", "Nobody " + TEXT + " right").reported > 0
    several("Somebody " + TEXT, "Somebody " + TEXT)
    several("short", "Someone " + TEXT)
    several("Some " + TEXT, "short")
    talk.exact(10)


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
def test_of_several_streamed_prompts_the_first_to_answer_is_reported(talk, ids, as_ids):
    """The first prompt usually answers first. Texts may overtake one another in the tokenizer, which cannot be
    predicted.
    """
    compared = 0
    for number in range(12):
        texts = [f"{number // 2} {TEXT}", f"{number} {TEXT}", f"{number % 5} {TEXT}"]
        answer = talk.send(
            "/v1/completions",
            {
                "model": talk.model,
                "prompt": [ids(text) for text in texts] if as_ids else texts,
                "max_tokens": 8,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
        talk.settle()
        if answer.body["first"] == 0:
            compared += 1
            assert answer.predicted == answer.reported
    assert compared >= 4


def test_several_answers_to_each_of_several_prompts(talk):
    for prompt in (TEXT, [TEXT, "Twice " + TEXT], ["Thrice " + TEXT, "Thrice " + TEXT]):
        for n in (3, 2):
            talk.complete(prompt, n=n, temperature=1)
    talk.exact(6)
