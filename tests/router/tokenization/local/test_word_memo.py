"""Remembered ids, joined, are those of the whole text, for every tokenizer that has such a memo."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from backends.vllm.render import ChatRenderer
from backends.vllm.tokenizer import TokenizerFiles, special_tokens
from router.tokenization.local import word_memo as module
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.local.word_memo import MAX_STRETCH_CHARS, MAX_TEXT_CHARS, MAX_UNKNOWN, WordMemo, word_memo
from tests.router.tokenization.conftest import PLAIN, byte_level

CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Llama 4's pattern, which looks at the case."""
WITH_MEMO = {"plain", "gpt2", "llama_3", "llama_4", "qwen", "qwen_added", "overlap", "mid_text", "shipped"}
FRAGMENTS = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\t", "\r\n", "\r", "/", "a", " a", " Word", "fooBar", "the ",
    "McDonald's", "'s", " 's", "'S a", "can't've", "'", ".", ". The", "...", ".\n", "a.\nb", "3", " 3.14159",
    "12345 a", "3's", "a1b2", "_x", "f(x)[0]:", "日本語", " é", "e\u0301", "a\u0338", ">\u0338", "\u0301 a",
    "\u00a0a", "\u3000", "🙂 ok", "\u200d", "\x00 a", "\x1c", "\x0b ", "\x7f b", "ﬁ", "<", "<s", "|>", "x<s",
    "user\n", "x" * 60,
]  # fmt: skip


def with_added(tokenizer: Tokenizer) -> ChatRenderer:
    return ChatRenderer(TokenizerFiles(tokenizer, {}, {}, special_tokens(tokenizer)))


@pytest.fixture(scope="session")
def renderers(loaded: dict[str, LocalModel]) -> dict[str, ChatRenderer]:
    composed = byte_level(*PLAIN)
    composed.normalizer = normalizers.NFC()
    made = {
        "llama_4": byte_level(*PLAIN, words=CASED_WORDS),
        "qwen_added": composed,
        "own_pattern": byte_level(*PLAIN, words=r"\S+ \S+|\s+|\S+"),
    }
    return {name: model.renderer for name, model in loaded.items()} | {
        name: with_added(tokenizer) for name, tokenizer in made.items()
    }


def memo_of(renderer: ChatRenderer) -> WordMemo:
    memo = word_memo(renderer)
    assert memo is not None
    return memo


def test_a_tokenizer_that_works_as_known_has_a_memo(renderers: dict[str, ChatRenderer]) -> None:
    assert {name for name, renderer in renderers.items() if word_memo(renderer) is not None} == WITH_MEMO


@pytest.mark.parametrize("name", sorted(WITH_MEMO))
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_text_has_the_ids_of_the_tokenizer(
    name: str, data: st.DataObject, renderers: dict[str, ChatRenderer]
) -> None:
    renderer = renderers[name]
    memo = memo_of(renderer)
    tokens = [token.text for token in renderer.special][:8]
    pieces = [*FRAGMENTS, *tokens, *(token[:-1] for token in tokens), *(token[1:] for token in tokens)]
    ascii_text = st.text(st.characters(max_codepoint=127), max_size=6)
    texts = st.lists(st.one_of(st.sampled_from(pieces), ascii_text, st.text(max_size=3)), max_size=16).map("".join)
    for text in data.draw(st.lists(texts, min_size=2, max_size=4)):
        for _ in range(2):  # as new text, and as text that is known
            ids = memo.encode(text)
            assert ids is None or list(ids) == renderer.encode(text, False)


def test_only_what_is_unknown_is_tokenised(renderers: dict[str, ChatRenderer], monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = renderers["shipped"]
    memo = memo_of(renderer)
    memo.encode("<|im_start|>user\nIs the sky blue, or is the sea?<|im_end|>")
    asked: list[str] = []
    encode = renderer.encode

    def asking(text: str, add_special_tokens: bool) -> list[int]:
        asked.append(text)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(renderer, "encode", asking)
    text = "<|im_start|>user\nIs the sea blue? Or is the grass, the 3 seas<|endoftext|>"
    assert list(memo.encode(text) or ()) == encode(text, False)
    assert asked == ["<|endoftext|>".join([" Or", " grass", " 3", " seas"])]
    assert list(memo.encode(text) or ()) == encode(text, False)
    assert len(asked) == 1


def test_of_a_text_with_much_unknown_a_part_is_learned(renderers: dict[str, ChatRenderer]) -> None:
    renderer = renderers["shipped"]
    memo = memo_of(renderer)
    text = " ".join(f"word {number}" for number in range(100, 101 + MAX_UNKNOWN))
    tries = 0
    while (ids := memo.encode(text)) is None:
        tries += 1
    assert tries == 1
    assert list(ids) == renderer.encode(text, False)


def test_texts_and_memory_are_bounded(renderers: dict[str, ChatRenderer], monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = renderers["shipped"]
    memo = memo_of(renderer)
    assert memo.encode("a" * (MAX_TEXT_CHARS + 1)) is None
    monkeypatch.setattr(module, "MAX_STRETCHES", 4)
    for text in ("one two three", f"one two three four {'x' * MAX_STRETCH_CHARS}x", "five", "naïve one"):
        assert list(memo.encode(text) or ()) == renderer.encode(text, False)
        assert len(memo._known) <= 4 + len(renderer.special)
        assert all(len(stretch) <= MAX_STRETCH_CHARS for stretch in memo._known)
