from random import Random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from backends.simulated.settings import shipped_model_dir
from backends.simulated.vocabulary import Vocabulary, VocabularyError

TEXT = "the cat sat on the mat and the dog ran after the cat while birds sing over green hills " * 3


def shipped():
    return Tokenizer.from_file(str(shipped_model_dir() / "tokenizer.json"))


def sentencepiece_like():
    """Words carry their space as a mark, and the decoder drops it at the start of a text, as Llama 2's does."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(special_tokens=["<unk>"]))
    return tokenizer


def draw_all(vocabulary, last_id, count):
    ids = []
    for n in range(count):
        ids.append(vocabulary.draw(ids[-1] if ids else last_id, first=n == 0))
    return ids


@pytest.mark.parametrize("before", ["<|im_start|>assistant\n", "def f", "x = 1;", "<|im_end|>"])
@pytest.mark.parametrize("seed", range(5))
def test_answer_reads_back_as_the_same_ids_behind_any_prompt(before, seed):
    tokenizer = shipped()
    vocabulary = Vocabulary(tokenizer, seed)
    prompt = tokenizer.encode(before).ids
    ids = draw_all(vocabulary, prompt[-1], 300)
    text = "".join(map(vocabulary.text, ids))
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode(before + text + "<|im_end|>\n").ids[: len(prompt) + 300] == prompt + ids


def test_first_word_has_no_space_only_at_a_line_start():
    tokenizer = shipped()
    vocabulary = Vocabulary(tokenizer, 0)
    line_end, word, control = (tokenizer.encode(text).ids[-1] for text in ("a\n", "def", "<|im_end|>"))
    assert not vocabulary.text(vocabulary.draw(line_end, first=True)).startswith(" ")
    assert not vocabulary.text(vocabulary.draw(control, first=True)).startswith(" ")
    assert vocabulary.text(vocabulary.draw(word, first=True)).startswith(" ")
    assert vocabulary.text(vocabulary.draw(line_end, first=False)).startswith(" ")


def test_same_seed_same_words():
    tokenizer = shipped()
    one, two, other = (draw_all(Vocabulary(tokenizer, seed), 5, 50) for seed in (1, 1, 2))
    assert one == two != other


def test_words_that_carry_a_mark_for_their_space():
    tokenizer = sentencepiece_like()
    vocabulary = Vocabulary(tokenizer, 0)
    prompt = tokenizer.encode("the cat").ids
    ids = draw_all(vocabulary, prompt[-1], 40)
    text = "".join(map(vocabulary.text, ids))
    assert text.startswith(" ")
    assert tokenizer.encode("the cat" + text).ids == prompt + ids


def test_tokenizer_without_words_is_refused():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["abc"], trainers.BpeTrainer(vocab_size=256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    with pytest.raises(VocabularyError):
        Vocabulary(tokenizer, Random(0).randrange(9))
