import gc
import tracemalloc
from array import array

from router.residency.prompt import Prompt, PromptSource
from router.tokenization.hashing import CacheKeys, chain_of
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.local.memo import SegmentMemo, common_tokens, packed_ids
from router.tokenization.rendering import RECENT_BYTES, PromptMemory, segmented_text


def ask(memory: PromptMemory, model: LocalModel, text: str, keys: CacheKeys, framed: bool) -> Prompt:
    rendered = memory.look_up(hash(text), keys, segmented_text(model, text, framed=framed))
    return memory.finish(rendered, rendered.encode())


def direct(model: LocalModel, text: str, keys: CacheKeys, framed: bool, block_tokens: int) -> tuple[int, list[int]]:
    ids = model.renderer.encode(text, framed)
    return len(ids), list(chain_of(packed_ids(array("I", ids)), block_tokens, keys))


def test_a_next_turn_tokenises_only_its_own_text(loaded: dict[str, LocalModel]) -> None:
    model, memory, keys = loaded["shipped"], PromptMemory(1 << 22), CacheKeys.of(None, None)
    turns = [f"<|im_start|>user\nturn {number} " + "some words of text " * 40 + "<|im_end|>\n" for number in range(10)]
    for count in range(1, 11):
        text = "".join(turns[:count]) + "<|im_start|>assistant\n"
        rendered = memory.look_up(count, keys, segmented_text(model, text, framed=False))
        assert rendered.new_bytes <= len(turns[0]) + 200
        memory.finish(rendered, rendered.encode())


def test_keys_split_the_memo_and_equal_texts_share_it(loaded: dict[str, LocalModel]) -> None:
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
        parts = [f"<|im_start|>{number % 7} system ".encode() * 9, f"<|im_start|>{number} user".encode() * 9]
        root = memo.root(model.seed, keys, array("I"))
        node, known = memo.find(root, parts)
        ids = [array("I", model.renderer.encode(part.decode(), False)) for part in parts[known:]]
        memo.extend(node, parts[known:], ids, keys)
        held = list(memo._nodes.values())
        assert memo.statistics()["bytes"] == sum(node.own_bytes for node in held) <= 60_000
        parents = {node.parent.key for node in held if node.parent.parent is not None}
        assert parents <= {node.key for node in held}, "an ancestor left before its descendant"
    assert memo.statistics()["evicted"] > 0
    assert memo.find(memo.root(model.seed, keys, array("I")), parts)[1] == 2, "the latest is still there"


def test_node_sizes_match_the_measured_ones() -> None:
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


def test_a_text_of_added_tokens_only_has_few_segments(loaded: dict[str, LocalModel]) -> None:
    model = loaded["shipped"]
    text = "<|im_end|>" * 200_000
    assert len(segmented_text(model, text, framed=False).parts) < 3_000
    shorter = segmented_text(model, text[:100_000], framed=False)
    assert segmented_text(model, text, framed=False).segments.starts[: len(shorter.parts)] == shorter.segments.starts


def test_old_texts_are_released(loaded: dict[str, LocalModel]) -> None:
    model, memory, keys = loaded["shipped"], PromptMemory(1 << 22), CacheKeys.of(None, None)
    early = ask(memory, model, "early " * 200, keys, framed=False)
    ids = memory.of_ids([array("I", range(64))], keys, PromptSource.IDS)
    placed = list(early.chain(16))
    for number in range(20):
        memory.of_ids([array("I", [number]) * 400_000], keys, PromptSource.IDS)
    assert list(early.chain(16)) == placed and list(early.chain(24)) == [] and list(ids.chain(16)) == []
    assert memory.statistics()["recent"]["bytes"] <= RECENT_BYTES + 1_000_000


def test_equal_ids_at_the_start_are_counted() -> None:
    ids = list(range(1000, 1100))
    for length in (0, 1, 2, 63, 99, 100):
        other = [*ids[:length], *(7 for _ in range(50))]
        assert common_tokens(packed_ids(array("I", ids)), packed_ids(array("I", other))) == length
        assert common_tokens(packed_ids(array("I", other)), packed_ids(array("I", ids))) == length
