"""Measure the residency index against its limits: ``python -m loadtest.bench.parts.residency [--blocks N]``.

The command prints KV event ingest (decode, hash, upsert) in blocks per second of one core, the time of a match, and the
memory per block for the first and for each further holder, with the hash map.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Iterator

from loadtest.bench.publisher import BLOCK_TOKENS, batch, removed, stored
from policies.view import WorkerId
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap

EVENT_BLOCKS = 128
"""2,048 tokens, the size of a prompt chunk."""
KEPT_EVENTS = 64
"""Events of a full cache, in which each stored block evicts another."""
MATCH_BLOCKS = 2_048
VOCABULARY = 128_256
BARS = {"ingest_blocks_per_s": 400_000, "first_holder_bytes": 230, "further_holder_bytes": 100, "match_64_us": 200}


def sequences(blocks: int, seed: int, tokens_seed: int) -> Iterator[dict[str, object]]:
    """Yield events that store `blocks` blocks in total: sequences of 16 chunks. Hashes are random."""
    rng, words = random.Random(seed), random.Random(tokens_seed)
    parent: int | None = None
    for number in range(blocks // EVENT_BLOCKS):
        hashes = [rng.getrandbits(64) for _ in range(EVENT_BLOCKS)]
        tokens = words.choices(range(VOCABULARY), k=EVENT_BLOCKS * BLOCK_TOKENS)
        yield stored(hashes, tokens, parent if number % 16 else None)
        parent = hashes[-1]


def with_evictions(events: Iterator[dict[str, object]]) -> Iterator[bytes]:
    kept: list[list[int]] = []
    for event in events:
        hashes = event["block_hashes"]
        assert isinstance(hashes, list)
        kept.append(hashes)
        gone = kept.pop(0)[::-1] if len(kept) > KEPT_EVENTS else []
        yield batch(*(removed([one]) for one in gone), event)


def new_map(slots: int = 1) -> ResidencyMap:
    residency = ResidencyMap()
    for slot in range(slots):
        residency.add(slot, WorkerId(f"w:{slot}"), BLOCK_TOKENS, None, True)
    return residency


def ingest_rate(payloads: list[bytes]) -> float:
    """Return blocks stored per second of CPU time, the best of three new maps."""
    best_s = float("inf")
    for _ in range(3):
        residency = new_map()
        started = time.process_time()
        for seq, payload in enumerate(payloads):
            residency.slot(0).ingest(seq, payload)
        best_s = min(best_s, time.process_time() - started)
        assert residency.slot(0).state().blocks >= min(len(payloads), KEPT_EVENTS) * EVENT_BLOCKS
    return len(payloads) * EVENT_BLOCKS / best_s


def bytes_per_block(blocks: int) -> tuple[float, float]:
    """Return traced bytes per block for the first holder, and for a second one with different hashes."""
    residency = new_map(2)
    found = []
    for slot in range(2):
        gc.collect()
        tracemalloc.start()
        for seq, event in enumerate(sequences(blocks, 10 + slot, 5)):
            residency.slot(slot).ingest(seq, batch(event))
        gc.collect()
        found.append(tracemalloc.get_traced_memory()[0] / residency.slot(slot).state().blocks)
        tracemalloc.stop()
    return found[0], found[1]


def match_us(slots: int, distinct_lengths: bool) -> float:
    """Return the median time of a match, in microseconds.

    The views hold the chain to random lengths, or each to one of four lengths.
    """
    rng = random.Random(9)
    tokens = rng.choices(range(VOCABULARY), k=MATCH_BLOCKS * BLOCK_TOKENS + 5)
    residency = new_map(slots)
    for slot in range(slots):
        length = rng.randrange(MATCH_BLOCKS + 1) if distinct_lengths else rng.choice([0, 40, 41, MATCH_BLOCKS - 100])
        hashes = [rng.getrandbits(64) for _ in range(length)]
        if hashes:
            residency.slot(slot).ingest(0, batch(stored(hashes, tokens[: length * BLOCK_TOKENS])))
    prompt = Prompt(len(tokens), PromptSource.IDS, lambda size: extend_chain(SEED, pack_tokens(tokens), size))
    prompt.chain(BLOCK_TOKENS)
    taken_s = []
    for _ in range(300):
        started = time.perf_counter()
        residency.match(prompt, range(slots))
        taken_s.append(time.perf_counter() - started)
    return statistics.median(taken_s) * 1e6


def figures(blocks: int, ingest_blocks: int) -> Iterator[tuple[str, float]]:
    """Yield each figure as it is measured."""
    yield "ingest_blocks_per_s", ingest_rate([batch(event) for event in sequences(ingest_blocks, 1, 2)])
    rows = [batch(list(event.values())) for event in sequences(ingest_blocks, 1, 2)]
    yield "ingest_rows_blocks_per_s", ingest_rate(rows)
    yield "ingest_churn_blocks_per_s", ingest_rate(list(with_evictions(sequences(ingest_blocks, 3, 4))))
    for slots in (64, 512):
        yield f"match_{slots}_us", match_us(slots, False)
        yield f"match_{slots}_distinct_us", match_us(slots, True)
    first, further = bytes_per_block(blocks)
    yield "first_holder_bytes", first
    yield "further_holder_bytes", further


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1_000_000, help="blocks in the index for the memory figures")
    parser.add_argument("--ingest-blocks", type=int, default=200_000, help="blocks per ingest run")
    options = parser.parse_args()
    for name, value in figures(options.blocks, options.ingest_blocks):
        bar = f"   bar {BARS[name]:,}" if name in BARS else ""
        print(f"{name:36} {value:14,.1f}{bar}")


if __name__ == "__main__":
    main()
