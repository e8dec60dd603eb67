"""A day of chats as a trace: four turns behind one of sixty system prompts, 1.7 times the mean rate at noon."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import count
from math import cos, exp, pi
from pathlib import Path

DAY_S = 86_400.0
BLOCK_TOKENS = 64
SYSTEMS, SYSTEM_TOKENS, TURNS = 60, 768, 4
SWING = 0.7


def write_day(path: Path, calls: int, seed: int = 0) -> None:
    """Write about `calls` rows of `sized_blocks`, in order of time. Answers are new text in the next prompt."""
    rng = random.Random(seed)
    ids = count(SYSTEMS * SYSTEM_TOKENS // BLOCK_TOKENS)
    rows = sorted(row for _ in range(calls // TURNS) for row in _chat(rng, ids))
    with path.open("w") as out:
        for at_s, tokens, answer, hashes in rows:
            row = {
                "timestamp": round(at_s * 1e3),
                "input_length": tokens,
                "output_length": answer,
                "hash_ids": hashes,
                "block_size": BLOCK_TOKENS,
            }
            out.write(json.dumps(row, separators=(",", ":")) + "\n")


def _chat(rng: random.Random, ids: Iterator[int]) -> Iterator[tuple[float, int, int, list[int]]]:
    system = rng.randrange(SYSTEMS) * SYSTEM_TOKENS // BLOCK_TOKENS
    hashes = list(range(system, system + SYSTEM_TOKENS // BLOCK_TOKENS))
    at_s, tokens = _start_s(rng), SYSTEM_TOKENS
    for _ in range(TURNS):
        tokens += _around(rng, 90, 1.0)
        answer = _around(rng, 110, 0.7)
        hashes += [next(ids) for _ in range(tokens // BLOCK_TOKENS - len(hashes))]
        if at_s < DAY_S:
            yield at_s, tokens, answer, list(hashes)
        tokens += answer
        at_s += 5.0 + _around(rng, 40, 0.8)


def _start_s(rng: random.Random) -> float:
    while True:
        at_s = rng.uniform(0.0, DAY_S)
        if rng.random() * (1 + SWING) < 1 - SWING * cos(2 * pi * at_s / DAY_S):
            return at_s


def _around(rng: random.Random, median: float, spread: float) -> int:
    return 1 + min(8_000, round(median * exp(rng.gauss(0.0, spread))))


if __name__ == "__main__":
    write_day(Path(sys.argv[1]), int(sys.argv[2]))
