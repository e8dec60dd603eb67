"""Measure the residency index against its limits: ``python -m loadtest.bench.parts.residency [--blocks N]``.

The command prints KV event ingest (decode, hash, upsert) in blocks per second of one core, the times of a match and of
a reservation, and the memory per block for the first and for each further holder, with the hash map.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator

import msgspec

from policies.view import WorkerId
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap

BLOCK_TOKENS = 16
EVENT_BLOCKS = 128
"""2,048 tokens, the size of a prompt chunk."""
VOCABULARY = 128_256

BARS = {"ingest_blocks_per_s": 400_000, "first_holder_bytes": 230, "further_holder_bytes": 100, "match_64_us": 200}


def stored(rng: random.Random, shape: str, tokens: list[int], parent: int | None) -> tuple[object, int]:
    """Return one BlockStored event and the hash of its last block. Hashes are random: only their size matters."""
    hashes = [rng.getrandbits(64) for _ in range(len(tokens) // BLOCK_TOKENS)]
    fields = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return (fields if shape == "map" else list(fields.values())), hashes[-1]


def batches(shape: str, blocks: int, seed: int, tokens_seed: int) -> Iterator[bytes]:
    """Yield payloads of `blocks` blocks in total: sequences of 16 chunks, one chunk a batch.

    `shape` "map" encodes events as maps, any other as rows.
    """
    rng, words = random.Random(seed), random.Random(tokens_seed)
    parent: int | None = None
    for number in range(blocks // EVENT_BLOCKS):
        tokens = words.choices(range(VOCABULARY), k=EVENT_BLOCKS * BLOCK_TOKENS)
        event, last = stored(rng, shape, tokens, parent if number % 16 else None)
        parent = last
        yield msgspec.msgpack.encode([time.time(), [event], 0])


def ingest_rate(shape: str, blocks: int) -> float:
    """Return blocks per second of CPU time, the best of three fresh maps."""
    payloads = list(batches(shape, blocks, 1, 2))
    best = 0.0
    for _ in range(3):
        residency = ResidencyMap()
        residency.add(0, WorkerId("w:1"), BLOCK_TOKENS, None, True)
        started = time.process_time()
        for seq, payload in enumerate(payloads):
            residency.ingest(0, seq, payload)
        best = max(best, len(payloads) * EVENT_BLOCKS / (time.process_time() - started))
        assert residency.state(0).blocks == len(payloads) * EVENT_BLOCKS
    return best


def churn_rate(blocks: int) -> float:
    """Return blocks stored per second of CPU time in a full cache, where each stored block evicts another."""
    kept: list[list[int]] = []
    payloads = []
    for payload in batches("map", blocks, 3, 4):
        ts, (event,), rank = msgspec.msgpack.decode(payload)
        events = [event]
        kept.append(event["block_hashes"])
        if len(kept) > 64:
            events = [{"type": "BlockRemoved", "block_hashes": [one], "medium": "GPU"} for one in kept.pop(0)[::-1]]
            events.append(event)
        payloads.append(msgspec.msgpack.encode([ts, events, rank]))
    residency = ResidencyMap()
    residency.add(0, WorkerId("w:1"), BLOCK_TOKENS, None, True)
    started = time.process_time()
    for seq, payload in enumerate(payloads):
        residency.ingest(0, seq, payload)
    return len(payloads) * EVENT_BLOCKS / (time.process_time() - started)


def bytes_per_block(blocks: int) -> tuple[float, float]:
    """Return traced bytes per block for the first holder, and for a second one with different hashes."""
    residency = ResidencyMap()
    found = []
    for slot in range(2):
        residency.add(slot, WorkerId(f"w:{slot}"), BLOCK_TOKENS, None, True)
        gc.collect()
        tracemalloc.start()
        for seq, payload in enumerate(batches("map", blocks, 10 + slot, 5)):
            residency.ingest(slot, seq, payload)
        gc.collect()
        found.append(tracemalloc.get_traced_memory()[0] / residency.state(slot).blocks)
        tracemalloc.stop()
    return found[0], found[1]


def median_us(call: Callable[[], object], times: int = 300) -> float:
    """Return the median wall time of a call in microseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


def deciding(slots: int, distinct_lengths: bool) -> dict[str, float]:
    """Return the times of a match and a reservation for a chain of 2,048 blocks.

    The views hold it to random lengths, or each to one of four lengths.
    """
    rng = random.Random(9)
    tokens = rng.choices(range(VOCABULARY), k=2048 * BLOCK_TOKENS + 5)
    residency = ResidencyMap()
    for slot in range(slots):
        residency.add(slot, WorkerId(f"w:{slot}"), BLOCK_TOKENS, None, True)
        length = rng.randrange(2049) if distinct_lengths else rng.choice([0, 40, 41, 1900])
        if length:
            event, _ = stored(rng, "map", tokens[: length * BLOCK_TOKENS], None)
            residency.ingest(slot, 0, msgspec.msgpack.encode([0.0, [event], 0]))
    prompt = Prompt(len(tokens), PromptSource.IDS, lambda size: extend_chain(SEED, pack_tokens(tokens), size))
    hashing = median_us(lambda: extend_chain(SEED, pack_tokens(tokens), BLOCK_TOKENS), 30)
    prompt.chain(BLOCK_TOKENS)
    match = median_us(lambda: residency.match(prompt, range(slots)))
    residency.reserve(0, prompt, 0)
    with_reservation = median_us(lambda: residency.match(prompt, range(slots)))

    def reserve() -> None:
        residency.reserve(1, prompt, 1)
        residency.release(1, 1)

    return {
        "hash": hashing,
        "match": match,
        "match_with_a_reservation": with_reservation,
        "reserve_and_release": median_us(reserve, 50),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1_000_000, help="blocks in the index for the memory figures")
    parser.add_argument("--ingest-blocks", type=int, default=200_000, help="blocks per ingest run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures: dict[str, float] = {
        "ingest_blocks_per_s": ingest_rate("map", options.ingest_blocks),
        "ingest_rows_blocks_per_s": ingest_rate("row", options.ingest_blocks),
        "ingest_churn_blocks_per_s": churn_rate(options.ingest_blocks),
    }
    for slots, distinct in ((64, False), (64, True), (512, False), (512, True)):
        for name, value in deciding(slots, distinct).items():
            figures[f"{name}_{slots}{'_distinct' if distinct else ''}_us"] = value
    figures["first_holder_bytes"], figures["further_holder_bytes"] = bytes_per_block(options.blocks)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        bar = f"   bar {BARS[name]:,}" if name in BARS else ""
        print(f"{name:36} {value:14,.1f}{bar}")


if __name__ == "__main__":
    main()
