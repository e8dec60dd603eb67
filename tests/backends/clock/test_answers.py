from types import SimpleNamespace

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


SEEDED = [SimpleNamespace(temperature=0.0, seed=None), SimpleNamespace(temperature=1.0, seed=7)]


def told(answers, known, count):
    return [answers.draw(known) for _ in range(count)]


@pytest.mark.parametrize("sampling", SEEDED, ids=["greedy", "seeded"])
def test_seeded_tokens_depend_on_the_ids_before_them_alone(tokenizer, sampling):
    one, two = (Answers(tokenizer, seed, [EOS], 0.1, 0.2) for seed in (1, 2))
    prompt = tokenizer.encode("What is a list?", add_special_tokens=False).ids
    whole = told(one, KnownRequest.read(prompt, len(prompt), sampling), 60)
    assert not tokenizer.decode(whole).isascii() and "\ufffd" not in tokenizer.decode(whole)[:-1]
    for cut in range(60):
        carried = prompt + whole[:cut]
        assert told(two, KnownRequest.read(carried, len(carried), sampling), 60 - cut) == whole[cut:]
    lost = KnownRequest.read(prompt, len(prompt), sampling)
    told(one, lost, 30)
    lost.restart(prompt + whole[:20])
    assert told(one, lost, 10) == whole[20:30]


def test_other_prompts_and_seeds_answer_otherwise(tokenizer):
    answers = Answers(tokenizer, 1, [EOS], 0.0)
    prompts = ([5, 6, 7, 8], [6, 5, 7, 8], [4, 5, 6, 7, 8])
    answered = {tuple(told(answers, KnownRequest.read(prompt, 3, SEEDED[0]), 9)) for prompt in prompts}
    answered.add(tuple(told(answers, KnownRequest.read(prompts[0], 3, SEEDED[1]), 9)))
    answered.add(tuple(told(answers, KnownRequest.read(prompts[0], 3, None), 9)))
    assert len(answered) == 5
