import pytest

from backends.clock.answers import Answers, NoTokenizer, read_tokenizer
from backends.clock.batches import KnownRequest
from backends.simulated.settings import shipped_model_dir

EOS = 2


@pytest.fixture(scope="module")
def tokenizer():
    return read_tokenizer(str(shipped_model_dir()))


def row(*ids):
    words = [0] * 250
    for token in ids:
        words[token // 32] |= 1 << (token % 32)
    return words


def test_answers_are_read_back_as_the_tokens_they_are(tokenizer):
    answers = Answers(tokenizer, 0, [EOS], 0.0)
    prompt = tokenizer.encode("What is a list?", add_special_tokens=False).ids
    known = KnownRequest(len(prompt), prompt[-1])
    ids = [answers.draw(known) for _ in range(200)]
    text = tokenizer.decode([*prompt, *ids], skip_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=False).ids == [*prompt, *ids]
    assert known.last_token == ids[-1] and len(set(ids)) > 50


def test_equal_seeds_answer_equally(tokenizer):
    def words(seed):
        known = KnownRequest(1, 100)
        answers = Answers(tokenizer, seed, [EOS], 0.0)
        return [answers.draw(known) for _ in range(30)]

    assert words(1) == words(1) != words(2)


def test_answers_end_with_the_configured_probability(tokenizer):
    never, sometimes = Answers(tokenizer, 0, [EOS], 0.0), Answers(tokenizer, 0, [EOS], 0.1)
    assert all(never.draw(KnownRequest(1, 100)) != EOS for _ in range(500))
    ends = sum(sometimes.draw(KnownRequest(1, 100)) == EOS for _ in range(2_000))
    assert 140 < ends < 260
    without = Answers(tokenizer, 0, [], 1.0)
    assert without.draw(KnownRequest(1, 100)) != EOS


def test_a_grammar_is_obeyed_and_ended_where_it_may_end(tokenizer):
    answers = Answers(tokenizer, 0, [EOS], 0.0)
    assert answers.draw(KnownRequest(1, 100), row(1_000, EOS)) == EOS
    assert {answers.draw(KnownRequest(1, 100), row(700, 1_000)) for _ in range(50)} == {700, 1_000}


def test_a_grammar_that_allows_blanks_prefers_another_token(tokenizer):
    blank = tokenizer.encode(" \n", add_special_tokens=False).ids[0]
    quote = tokenizer.token_to_id('"')
    answers = Answers(tokenizer, 0, [EOS], 0.0)
    assert {answers.draw(KnownRequest(1, 100), row(blank, quote)) for _ in range(20)} == {quote}
    assert answers.draw(KnownRequest(1, 100), row(blank)) == blank


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(NoTokenizer, match=r"not a local folder with a tokenizer.json.*weights are not needed"):
        read_tokenizer(str(tmp_path))
