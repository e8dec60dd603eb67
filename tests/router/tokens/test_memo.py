"""The memo's answers equal those of tokenising the whole text, whatever the tokenizer, and it stays within bounds."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.prefix.prompt import Prompt, PromptSource
from router.tokens.cuts import Cutter
from router.tokens.hashing import CacheKeys, chain_of
from router.tokens.local import LocalModel, ModelFiles
from router.tokens.memo import SegmentMemo, packed_ids
from router.tokens.proof import prove
from router.tokens.rendering import RECENT_BYTES, PromptMemory, cut_text

KINDS = (
    "plain",
    "strips",
    "overlap",
    "normalized",
    "single_word",
    "llama_first",
    "llama_always",
    "llama_normalizer",
    "shipped",
)
FRAGMENTS = [
    "", " ", "  ", "\n", "\n\n", "\t", "word", " word", "word ", "x", "_", "don't", "3.14", "日本語", "\u3000",
    "\u00a0 ", "🙂", "e\u0301", "<", "<s", "|>", "the quick brown fox jumps over the lazy dog", "lorem ipsum " * 12,
    "\x1c", "\x85",
]  # fmt: skip


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> dict[str, LocalModel]:
    return {kind: LocalModel(ModelFiles(folder)) for kind, folder in folders.items()}


def ask(memory: PromptMemory, model: LocalModel, text: str, keys: CacheKeys, framed: bool) -> Prompt:
    rendered = memory.look_up(hash(text), keys, cut_text(model, text, framed=framed))
    return memory.finish(rendered, rendered.encode())


def direct(model: LocalModel, text: str, keys: CacheKeys, framed: bool, block_tokens: int) -> tuple[int, list[int]]:
    ids = model.renderer.encode(text, framed)
    return len(ids), list(chain_of(packed_ids(array("I", ids)), block_tokens, keys))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_memoised_equals_direct(loaded: dict[str, LocalModel], kind: str, data: st.DataObject) -> None:
    model = loaded[kind]
    pieces = st.sampled_from(FRAGMENTS) | st.sampled_from([token.text for token in model.renderer.special])
    turns = data.draw(st.lists(st.lists(pieces, min_size=1, max_size=12).map("".join), min_size=1, max_size=5))
    keys = CacheKeys.of(
        *data.draw(st.sampled_from([(None, None), ("adapter", None), (None, "salt"), ("adapter", "salt")]))
    )
    framed = data.draw(st.booleans())
    memory, text = PromptMemory(1 << 22), ""
    for turn in turns:
        text += turn
        prompt = ask(memory, model, text, keys, framed)
        for block_tokens in (16, 4):
            assert (prompt.tokens, list(prompt.chain(block_tokens))) == direct(model, text, keys, framed, block_tokens)


def test_which_tokenizers_are_proven(loaded: dict[str, LocalModel]) -> None:
    assert {kind: model.memo_off for kind, model in loaded.items() if model.memo_off is not None} == {}
    assert all(model.describe().startswith("rendered locally from ") for model in loaded.values())


def test_a_wrong_cut_turns_the_memo_off(folders: dict[str, Path]) -> None:
    model = LocalModel(ModelFiles(folders["single_word"]))
    believed = [replace(token, single_word=False) for token in model.renderer.special]
    reason = prove(model.renderer, Cutter(believed, normalizes=False))
    assert reason is not None
    assert prove(model.renderer, Cutter((), normalizes=False)) is not None


def test_a_next_turn_tokenises_only_its_own_text(loaded: dict[str, LocalModel]) -> None:
    model, memory, keys = loaded["shipped"], PromptMemory(1 << 22), CacheKeys.of(None, None)
    turns = [f"<|im_start|>user\nturn {number} " + "some words of text " * 40 + "<|im_end|>\n" for number in range(10)]
    for count in range(1, 11):
        text = "".join(turns[:count]) + "<|im_start|>assistant\n"
        rendered = memory.look_up(count, keys, cut_text(model, text, framed=False))
        assert rendered.new_bytes <= len(turns[0]) + 200
        memory.finish(rendered, rendered.encode())


def test_keys_split_and_texts_share(loaded: dict[str, LocalModel]) -> None:
    model, memory = loaded["shipped"], PromptMemory(1 << 22)
    text = "<|im_start|>system\n" + "be brief. " * 60
    chains = {
        names: tuple(ask(memory, model, text, CacheKeys.of(*names), framed=False).chain(16))
        for names in [(None, None), ("a", None), ("b", None), (None, "a"), ("a", "a")]
    }
    assert len({chain[1:] for chain in chains.values()}) == 5
    assert all(len(chain) == len(chains[None, None]) > 4 for chain in chains.values())


def test_memory_is_bounded_and_counted(loaded: dict[str, LocalModel]) -> None:
    model, keys = loaded["shipped"], CacheKeys.of(None, None)
    memo = SegmentMemo(60_000)
    for number in range(200):
        units = [f"<|im_start|>{number % 7} system ".encode() * 9, f"<|im_start|>{number} user".encode() * 9]
        root = memo.root(model.seed, keys, array("I"))
        node, known = memo.find(root, units)
        ids = [array("I", model.renderer.encode(unit.decode(), False)) for unit in units[known:]]
        memo.extend(node, units[known:], ids, keys)
        held = list(memo._nodes.values())
        assert memo.statistics()["bytes"] == sum(node.own_bytes for node in held) <= 60_000
        parents = {node.parent.key for node in held if node.parent.parent is not None}
        assert parents <= {node.key for node in held}, "an ancestor left before its descendant"
    assert memo.statistics()["evicted"] > 0
    assert memo.find(memo.root(model.seed, keys, array("I")), units)[1] == 2, "the latest is still there"


def test_node_sizes_are_those_measured() -> None:
    keys = CacheKeys.of(None, None)
    memo = SegmentMemo(1 << 30)
    root = memo.root(1, keys, array("I"))
    gc.collect()
    tracemalloc.start()
    for number in range(2_000):
        memo.extend(root, [b"%d" % number], [array("I", range(1_000 + number, 1_500 + number))], keys)
    measured, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 < measured / memo.statistics()["bytes"] < 1.2


def test_block_sizes_are_added_and_limited(loaded: dict[str, LocalModel]) -> None:
    model, memory, keys = loaded["shipped"], PromptMemory(1 << 22), CacheKeys.of(None, None)
    text = "<|im_start|>user\n" + "one two three four " * 100
    for block_tokens in (16, 32, 48, 64, 128, 7):
        prompt = ask(memory, model, text, keys, framed=False)
        assert (prompt.tokens, list(prompt.chain(block_tokens))) == direct(model, text, keys, False, block_tokens)
        assert len(prompt.chain(block_tokens)) == prompt.tokens // block_tokens


def test_a_text_of_added_tokens_only_has_few_units(loaded: dict[str, LocalModel]) -> None:
    model = loaded["shipped"]
    text = "<|im_end|>" * 200_000
    assert len(cut_text(model, text, framed=False).units) < 3_000
    shorter = cut_text(model, text[:100_000], framed=False)
    assert cut_text(model, text, framed=False).cuts.starts[: len(shorter.units)] == shorter.cuts.starts


def test_old_texts_are_let_go(loaded: dict[str, LocalModel]) -> None:
    model, memory, keys = loaded["shipped"], PromptMemory(1 << 22), CacheKeys.of(None, None)
    early = ask(memory, model, "early " * 200, keys, framed=False)
    ids = memory.of_ids([array("I", range(64))], keys, PromptSource.IDS)
    placed = list(early.chain(16))
    for number in range(20):
        ask(memory, model, f"{number} " * 200_000, keys, framed=False)
    assert list(early.chain(16)) == placed and list(early.chain(24)) == [] and list(ids.chain(16)) == []
    assert memory.statistics()["recent"]["bytes"] <= RECENT_BYTES + 1_000_000
