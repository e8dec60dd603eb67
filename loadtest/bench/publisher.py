"""A KV event publisher at a set rate, to measure how ingest affects the streams beside it.

Speaks vLLM's wire (>= 0.24): each batch stores a run of new blocks and removes as many old ones. Run as
``python -m loadtest.bench.publisher --port P --blocks-per-s R``.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections import deque

import msgspec
import zmq

BLOCK_TOKENS = 16
RUN_BLOCKS = 64
KEPT_RUNS = 400
DIFFERENT_RUNS = 1_000
"""Runs of token ids: more than are kept, so that no block is stored twice at a time."""


def publish(port: int, blocks_per_s: float) -> None:
    socket = zmq.Context().socket(zmq.PUB)
    socket.setsockopt(zmq.SNDHWM, 100_000)
    socket.bind(f"tcp://127.0.0.1:{port}")
    rng = random.Random(0)
    texts = [_token_ids(rng) for _ in range(DIFFERENT_RUNS)]
    runs: deque[list[int]] = deque()
    # Half of the stated rate is stored and half removed, since both cost the subscriber.
    gap_s = 2 * RUN_BLOCKS / blocks_per_s
    due_s = time.monotonic()
    sequence = 0
    while True:
        hashes = [rng.getrandbits(64) for _ in range(RUN_BLOCKS)]
        runs.append(hashes)
        events: list[dict[str, object]] = [stored(hashes, texts[sequence % DIFFERENT_RUNS])]
        if len(runs) > KEPT_RUNS:
            events.append({"type": "BlockRemoved", "block_hashes": runs.popleft(), "medium": "GPU"})
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        socket.send_multipart([b"", struct.pack(">Q", sequence), payload])
        sequence += 1
        due_s += gap_s
        time.sleep(max(0.0, due_s - time.monotonic()))


def _token_ids(rng: random.Random) -> msgspec.Raw:
    """Return the packed token ids of one run: packing them for each event would cost more than the rest of it."""
    return msgspec.Raw(msgspec.msgpack.encode([rng.getrandbits(15) for _ in range(BLOCK_TOKENS * RUN_BLOCKS)]))


def stored(hashes: list[int], token_ids: msgspec.Raw) -> dict[str, object]:
    """Return one event that stores a run of blocks from the start of a prompt."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": token_ids,
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--blocks-per-s", type=float, default=50_000)
    args = parser.parse_args()
    publish(args.port, args.blocks_per_s)


if __name__ == "__main__":
    main()
