"""A KV event publisher at a set rate, to measure how ingest affects the streams beside it.

Speaks vLLM's wire (>= 0.24): each batch stores a run of new blocks and removes as many old ones. Run as
``python -m loadtest.bench.publisher --port P --blocks-per-s R``.
"""

from __future__ import annotations

import argparse
import itertools
import random
import struct
import time
from collections import deque
from collections.abc import Sequence

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
    # Packing the token ids for each event would cost more than the rest of it.
    texts = [
        msgspec.Raw(msgspec.msgpack.encode([rng.getrandbits(15) for _ in range(BLOCK_TOKENS * RUN_BLOCKS)]))
        for _ in range(DIFFERENT_RUNS)
    ]
    runs: deque[list[int]] = deque()
    # Half of the stated rate is stored and half removed, since both cost the subscriber.
    gap_s = 2 * RUN_BLOCKS / blocks_per_s
    due_s = time.monotonic()
    for sequence in itertools.count():
        hashes = [rng.getrandbits(64) for _ in range(RUN_BLOCKS)]
        runs.append(hashes)
        events = [stored(hashes, texts[sequence % DIFFERENT_RUNS])]
        if len(runs) > KEPT_RUNS:
            events.append(removed(runs.popleft()))
        socket.send_multipart([b"", struct.pack(">Q", sequence), batch(*events)])
        due_s += gap_s
        time.sleep(max(0.0, due_s - time.monotonic()))


def stored(hashes: Sequence[int], token_ids: object, parent: int | None = None) -> dict[str, object]:
    """Return the event that a run of blocks was stored after `parent`, from the start of a prompt without it."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": token_ids,
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def removed(hashes: Sequence[int]) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}


def batch(*events: object) -> bytes:
    """Return the payload of one message."""
    return msgspec.msgpack.encode([time.time(), events, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--blocks-per-s", type=float, default=50_000)
    args = parser.parse_args()
    publish(args.port, args.blocks_per_s)


if __name__ == "__main__":
    main()
