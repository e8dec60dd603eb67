from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from backends.vllm.render import ChatRenderer
from backends.vllm.tokenizer import SpecialToken, TokenizerFiles, special_tokens
from backends.vllm.unrenderable import Unrenderable
from router.tokenization.local.segmentation_check import MAX_TRIED_TOKENS, segmentation_error
from router.tokenization.local.segmenter import Segmenter, Segments

ALPHABET = "ab<> \nA"
TEXTS = st.text(ALPHABET, min_size=1, max_size=4)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
TOKENS = st.builds(
    lambda text, flags: AddedToken(text, **dict.fromkeys(flags, True), **dict.fromkeys(set(FLAGS) - flags, False)),
    TEXTS,
    st.sets(st.sampled_from(FLAGS), max_size=3),
)
TABLES = st.lists(TOKENS, min_size=1, max_size=4, unique_by=lambda token: token.content)


MERGES = [("a", "b"), ("<", "a"), ("Ġ", "a")]


def byte_level(prefix_space: bool = False, merges: list[tuple[str, str]] = MERGES) -> Tokenizer:
    vocabulary = {piece: place for place, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE({**vocabulary, **{a + b: 256 + i for i, (a, b) in enumerate(merges)}}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    pieces = ["<unk>", *"ab<>\nA▁", "ab", "▁a", "<a"]
    merges = [("a", "b"), ("▁", "a"), ("<", "a")]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer


def unigram(*more: str) -> Tokenizer:
    """Added tokens are pieces of the model as well, and text in capitals becomes one of them."""
    pieces = [("<unk>", 0.0), *((piece, -3.0) for piece in "ab<>\n▁"), ("ab", -2.0), *((piece, 0.0) for piece in more)]
    tokenizer = Tokenizer(models.Unigram(list(dict(pieces).items()), 0, False))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return tokenizer


MAKERS = {
    "byte_level": lambda table: byte_level(),
    "prefix_space": lambda table: byte_level(prefix_space=True),
    "first": lambda table: metaspace("first"),
    "always": lambda table: metaspace("always"),
    "unigram": lambda table: unigram(*(token.content for token in table)),
}


def renderer_of(tokenizer: Tokenizer, table: list[AddedToken]) -> ChatRenderer:
    tokenizer.add_tokens(table)
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    return ChatRenderer(TokenizerFiles(tokenizer, {}, {}, special_tokens(tokenizer)))


def panics(renderer: ChatRenderer, text: str) -> bool:
    """Return whether the tokenizer panics on this text: tokens that strip the same white space can cause it."""
    try:
        renderer.encode(text, False)
    except Unrenderable:
        return True
    return False


def flat(parts: list) -> list[int]:
    return [token_id for part in parts for token_id in part]


def hold(renderer: ChatRenderer, segmenter: Segmenter, text: str) -> bool:
    """Return whether every segment of `text`, split from any segment on, has the ids that a memo needs."""
    data, whole = text.encode(), renderer.encode(text, False)
    segments = segmenter.segments(data, least_bytes=1)
    ends = [*segments.starts[1:], len(data)]
    until = [len(renderer.encode(data[:end].decode(), False)) for end in ends]
    if any(
        renderer.encode(data[:end].decode(), False) != whole[:place] for end, place in zip(ends, until, strict=True)
    ):
        return False
    for first, start in enumerate(segments.starts):
        rest = renderer.encode(data[start:].decode(), False)
        parts = segmenter.split_ids(rest, segments, first)
        before = whole[: until[first - 1]] if first else []
        if before + rest != whole:
            return False
        numbers = range(len(parts)) if parts is not None else ()
        if any(before + flat(parts[: n + 1]) != whole[: until[first + n]] for n in numbers):
            return False
    return True


@pytest.mark.parametrize("maker", MAKERS)
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_boundaries_hold_for_any_token_table(maker: str, data: st.DataObject) -> None:
    """The rules of `Segmenter` on their own, without the check."""
    table = data.draw(TABLES)
    renderer = renderer_of(MAKERS[maker](table), table)
    segmenter = Segmenter(
        renderer.special,
        normalizes=renderer.tokenizer.normalizer is not None,
        ambiguous=frozenset(renderer.encode("\u0378 \u0378", False)),
    )
    whole = [token.content for token in table]
    pieces = [*whole * 2, *(text[:-1] for text in whole), *(text[1:] for text in whole), *ALPHABET, "ab", "ba ab"]
    for _ in range(4):
        text = "".join(data.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=12)))
        assert panics(renderer, text) or hold(renderer, segmenter, text), (text, [t.text for t in renderer.special])


class Believing(Segmenter):
    """Assumes that every added token stands alone in the raw text, whatever its flags say."""

    def __init__(self, special: tuple[SpecialToken, ...], **flags: bool) -> None:
        believed = [SpecialToken(t.text, t.id, t.special, **dict.fromkeys(FLAGS[:-1], False) | flags) for t in special]
        super().__init__(believed, normalizes=False)


def token(text: str, **flags: bool) -> AddedToken:
    return AddedToken(text, **{"normalized": False, "special": True, **flags})


def stripping() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Strip()
    return tokenizer


LIES = {
    "whole words": (byte_level(merges=[]), [token("ab", single_word=True)]),
    "a lost neighbour": (byte_level(merges=[]), [token("ab", single_word=True), token("b<")]),
    "space on the left": (byte_level(), [token("<a>", lstrip=True)]),
    "space that fades": (byte_level(), [token("\n", lstrip=True, rstrip=True), token("<a>")]),
    "two passes": (byte_level(), [token("<a>"), token("b<a", normalized=True)]),
    "normalised text": (stripping(), [token("<a>", normalized=True)]),
}


@pytest.mark.source_only
@pytest.mark.parametrize("name", LIES)
def test_the_check_finds_a_wrong_boundary(name: str) -> None:
    tokenizer, table = LIES[name]
    renderer = renderer_of(Tokenizer.from_str(tokenizer.to_str()), table)
    assert segmentation_error(renderer, Believing(renderer.special)) is not None
    normalizes = renderer.tokenizer.normalizer is not None
    assert segmentation_error(renderer, Segmenter(renderer.special, normalizes=normalizes)) in (
        None,
        "no added token that is looked for in raw text",
    )


class Shifted(Segmenter):
    """Divides at the right places, but counts one added token too few before each."""

    def split_ids(self, ids, segments, first):  # type: ignore[no-untyped-def]
        ordinals = [max(0, ordinal - 1) for ordinal in segments.ordinals]
        return super().split_ids(ids, Segments(segments.starts, ordinals, segments.tokens_found), first)


@pytest.mark.source_only
def test_the_check_finds_a_wrong_count() -> None:
    renderer = renderer_of(byte_level(), [token("<a>"), token("<b>")])
    assert segmentation_error(renderer, Segmenter(renderer.special, normalizes=False)) is None
    assert "cut before" in (segmentation_error(renderer, Shifted(renderer.special, normalizes=False)) or "")


def test_hundreds_of_tokens_are_sampled() -> None:
    encoded = []

    class Counting(ChatRenderer):
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            encoded.append(text)
            return super().encode(text, add_special_tokens)

    few = renderer_of(byte_level(), [token(f"<a{n}>") for n in range(MAX_TRIED_TOKENS)])
    many = renderer_of(byte_level(), [token(f"<a{n}>") for n in range(500)])
    counts = []
    for renderer in (few, many):
        renderer.__class__ = Counting
        encoded.clear()
        assert segmentation_error(renderer, Segmenter(renderer.special, normalizes=False)) is None
        counts.append(len(encoded))
    assert counts[1] < 1.5 * counts[0]


def test_a_tokenizer_that_panics_fails_the_check(tmp_path: Path) -> None:
    """Normalisation empties an added token, which is then found between the bytes of a character, and Rust panics."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Strip()
    renderer = renderer_of(tokenizer, [token(" ", normalized=True), token("<a>")])
    assert "tokenizer: " in (segmentation_error(renderer, Segmenter(renderer.special, normalizes=True)) or "")
