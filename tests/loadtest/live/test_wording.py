import json

import pytest
from tokenizers import Tokenizer, models

from backends.simulated.settings import shipped_model_dir
from loadtest.live.wording import NoWords, Wording
from loadtest.workload.text import Text


@pytest.fixture(scope="module")
def wording():
    return Wording(shipped_model_dir())


def ids(packed):
    return json.loads(b"[" + packed + b"]")


def test_a_piece_has_its_length_and_reads_back_as_itself(wording):
    found = wording.ids((7, 300))
    assert len(found) == 300
    tokenizer = Tokenizer.from_file(str(shipped_model_dir() / "tokenizer.json"))
    assert wording.read(tokenizer.decode(found)) == found


def test_equal_ids_are_equal_text_as_far_as_both_reach(wording):
    assert wording.ids((7, 300))[:100] == wording.ids((7, 100))
    assert wording.ids((7, 100)) != wording.ids((8, 100))


def test_a_prompt_is_its_pieces_and_quotes_answers_as_the_model_worded_them(wording):
    text = Text.of([(7, 20), (1 << 62, 3), (9, 5)])
    packed = wording.prompt(text, {1 << 62: [41, 42, 43, 44]})
    assert ids(packed) == [*wording.ids((7, 20)), 41, 42, 43, *wording.ids((9, 5))]


def test_a_model_without_words_is_refused(tmp_path):
    Tokenizer(models.WordLevel({"[UNK]": 0, "x": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(NoWords, match="0 whole words; serve another model"):
        Wording(tmp_path)
