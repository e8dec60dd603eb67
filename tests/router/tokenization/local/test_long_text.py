from random import Random

import pytest

from backends.vllm.unrenderable import Unrenderable
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.local.long_text import MAX_WHOLE_BYTES, PIECE_CHARS, SHORT_CHARS, encode_in_pieces
from tests.router.tokenization.conftest import TEXTS

WORDS = [
    "the", " quick", "  two", "\n", "\n\n", "\t", "don't", "3.14159", "naïve", "日本語", "🙂", "!!!", "<s>", "</s>",
    "e\u0301", " word", "word ", "<l>", "<r>", "ing", "Å", "\u3000", "x<s",
]  # fmt: skip


def long_text(random: Random) -> str:
    """More than two pieces of words, white space and added tokens at random."""
    return "".join(random.choices([*WORDS, *TEXTS], weights=[40] * len(WORDS) + [1] * len(TEXTS), k=40_000))


def test_pieces_have_the_ids_of_the_whole_text(kind: str, loaded: dict[str, LocalModel]) -> None:
    local = loaded[kind]
    text = long_text(Random(kind))[: 5 * PIECE_CHARS // 2]
    whole = local.renderer.encode(text, False)
    assert kind == "dropping_out" or list(local.encode(text, framed=False)) == whole
    if not local.appends_tokens:
        assert kind == "dropping_out" or list(local.encode(text, framed=True)) == local.renderer.encode(text, True)


@pytest.mark.parametrize("name", ["gpt2", "llama_3", "qwen", "shipped"])
def test_byte_level_tokenizers_never_see_more_than_a_few_pieces(name: str, loaded: dict[str, LocalModel]) -> None:
    seen: list[int] = []

    def encode(text: str) -> list[int]:
        seen.append(len(text))
        return loaded[name].renderer.encode(text, False)

    text = (TEXTS[0] + TEXTS[1]) * 200
    ids = encode_in_pieces(encode, text)
    assert list(ids) == loaded[name].renderer.encode(text, False)
    assert max(seen) <= SHORT_CHARS < len(text)


def test_a_long_text_that_cannot_be_divided_is_refused() -> None:
    def encode(text: str) -> list[int]:
        return [len(text)]

    assert list(encode_in_pieces(encode, "a" * MAX_WHOLE_BYTES)) == [MAX_WHOLE_BYTES]
    for text in ("a" * (MAX_WHOLE_BYTES + 1), "あ" * (MAX_WHOLE_BYTES // 3 + 1), "a b " * MAX_WHOLE_BYTES):
        with pytest.raises(Unrenderable, match="piece by piece"):
            encode_in_pieces(encode, text)
