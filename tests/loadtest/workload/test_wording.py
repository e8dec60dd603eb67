"""Pieces become words that a worker reads as the tokens they stand for."""

import pytest
from tokenizers import Tokenizer, models

from backends.simulated.settings import shipped_model_dir
from loadtest.workload.text import Text
from loadtest.workload.wording import NoWords, Wording


@pytest.fixture(scope="module")
def wording():
    return Wording(shipped_model_dir())


def text_of(wording, *pieces):
    return wording.prompt(Text.of(pieces), {})


def test_a_piece_has_its_length_alone_and_after_others(wording):
    assert wording.length(text_of(wording, (7, 300))) == 300
    assert wording.length(text_of(wording, (9, 21), (7, 300), (8, 4))) == 325


def test_equal_ids_are_equal_text_as_far_as_both_reach(wording):
    short = text_of(wording, (7, 100))
    assert text_of(wording, (7, 300)).startswith(short)
    assert short != text_of(wording, (8, 100))


def test_a_prompt_is_its_pieces_and_quotes_answers_as_the_model_worded_them(wording):
    answer = text_of(wording, (5, 4))
    prompt = wording.prompt(Text.of([(7, 20), (1 << 62, 3), (9, 5)]), {1 << 62: answer})
    quoted = wording.cut(answer, 3)
    assert answer.startswith(quoted) and wording.length(quoted) == 3
    assert prompt == text_of(wording, (7, 20)) + quoted + text_of(wording, (9, 5))


def test_a_model_without_words_is_refused(tmp_path):
    Tokenizer(models.WordLevel({"[UNK]": 0, "x": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(NoWords, match="0 whole words; serve another model"):
        Wording(tmp_path)
