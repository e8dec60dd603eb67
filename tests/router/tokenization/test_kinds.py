"""The memo's ids equal those of the whole text for every kind of tokenizer, or the memo is off and gives a reason."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from backends.vllm.unrenderable import Unrenderable
from router.config.model import Config
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import Prompt
from router.tokenization.hashing import CacheKeys
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.rendering import PromptMemory, segmented_text
from tests.support.examples import examples

OFF = {
    "all_normalized": "no added token that is looked for in raw text",
    "no_tokens": "no added token that is looked for in raw text",
    "dropping_out": "changes tokens",
}
APPENDING = {"unigram", "unigram_unknown", "word_piece"}
FRAGMENTS = [
    "", " ", "  ", "\n", "\n\n", "\t", "\r\n", "word", " word", "word ", "Word", "x", "_", "don't", "3.14", "日本語",
    "\u3000", "\u00a0 ", "🙂", "👩\u200d👩\u200d👧", "e\u0301", "\u0301", "é", "ﬁ", "\uff21", "<", "<s", "|>", "<S>",
    "\uff1cs\uff1e", "[INST", "\x00", "\x1c", "\x85", "\ufeff", "\u202e", "\U00013080",
    "the quick brown fox jumps over the lazy dog",
    "lorem ipsum " * 12, "x" * 700, "日" * 150,
]  # fmt: skip
KEYS = CacheKeys.of(None, None)


def conversations(model: LocalModel) -> st.SearchStrategy[list[str]]:
    """Turns of fragments, the tokenizer's added tokens, and look-alikes of these."""
    tokens = [token.text for token in model.renderer.special][:40]
    alike = {part for token in tokens for part in (token[:-1], token[1:], token.upper(), token.lower(), f" {token} ")}
    pieces = st.sampled_from(FRAGMENTS) | st.sampled_from([*tokens, *sorted(alike), "x"]) | st.text(max_size=4)
    return st.lists(st.lists(pieces, min_size=1, max_size=12).map("".join), min_size=1, max_size=5)


def ask(memory: PromptMemory, model: LocalModel, text: str, framed: bool) -> Prompt:
    rendered = memory.look_up(hash(text), KEYS, segmented_text(model, text, framed=framed))
    return memory.finish(rendered, rendered.encode())


@pytest.fixture(scope="session")
def references(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: Tokenizer.from_file(str(folder / "tokenizer.json")) for kind, folder in folders.items()}


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_memoised_ids_equal_direct_ones(
    loaded: dict[str, LocalModel], references: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    if kind == "dropping_out":
        return  # its results never repeat
    model, framed = loaded[kind], kind not in APPENDING and data.draw(st.booleans())
    memory, text = PromptMemory(1 << 22), ""
    for turn in data.draw(conversations(model)):
        text += turn
        prompt = ask(memory, model, text, framed)
        ids = references[kind].encode(text, add_special_tokens=framed).ids
        assert prompt.tokens == len(ids)
        for block_tokens in (16, 4):
            assert list(prompt.chain(block_tokens)) == list(extend_chain(SEED, pack_tokens(ids), block_tokens))


def test_memos_that_are_off_give_a_reason(loaded: dict[str, LocalModel]) -> None:
    off = {kind: model.memo_off for kind, model in loaded.items() if model.memo_off is not None}
    assert off.keys() == OFF.keys()
    assert all(OFF[kind] in off[kind] for kind in OFF), off


def test_a_next_turn_costs_its_own_text(loaded: dict[str, LocalModel], kind: str) -> None:
    """Where the memo is on, it also saves work."""
    model = loaded[kind]
    usable = [token.text for token in model.renderer.special if not token.single_word and not token.normalized]
    token = usable[-1] if usable else "<|endoftext|>"
    memory, text, new_bytes = PromptMemory(1 << 22), "", []
    for number in range(6):
        text += f"{token}turn {number} " + "some words of text " * 20
        rendered = memory.look_up(number, KEYS, segmented_text(model, text, framed=False))
        new_bytes.append(rendered.new_bytes)
        memory.finish(rendered, rendered.encode())
    # A token that strips space on its left absorbs a part of the turn before, which is then another text.
    assert (max(new_bytes[1:]) < 2.5 * new_bytes[0]) is (kind not in OFF)


def test_completions_with_appended_tokens_go_without_ids(loaded: dict[str, LocalModel], kind: str) -> None:
    model = loaded[kind]
    assert model.appends_tokens is (kind in APPENDING)
    if kind in APPENDING:
        with pytest.raises(Unrenderable, match="appends"):
            segmented_text(model, "text", framed=True)


async def test_a_memo_that_is_off_is_reported(identifier, folders: dict[str, Path]) -> None:
    identity = identifier(Config(model_dir=str(folders["plain"])))
    identity.sources.learn("proven", str(folders["plain"]), None)
    assert identity.describe("proven") == f"rendered locally from {folders['plain']}"
    assert identity.statistics()["models_without_memo"] == {}
    identity = identifier(Config(model_dir=str(folders["no_tokens"])))
    identity.sources.learn("off", str(folders["no_tokens"]), None)
    why = "no added token that is looked for in raw text"
    assert identity.describe("off") == f"rendered locally from {folders['no_tokens']} (prefix memo off: {why})"
    assert identity.statistics()["models_without_memo"] == {"off": why}
