"""Mooncake's published traces: lengths and block hashes of real conversations, without their text.

A row has ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``: one per 512 tokens of the prompt,
the last one for a part of a block. Equal ids mean equal text from the prompt's start on, so rows are turned into token
ids block by block. Timestamps stand on ticks three seconds apart, about ten rows on each: unless they are spread
within them, a thundering herd is measured that nobody sent.
"""

from __future__ import annotations

import shutil
import subprocess
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import msgspec

BLOCK_TOKENS = 512
TICK_S = 3.0


class TraceError(Exception):
    """The trace cannot be read; the message says why and what to do."""


class Row(msgspec.Struct, frozen=True):
    """One request of the trace."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_rows(path: Path) -> list[Row]:
    """All rows of a ``.jsonl`` file, or of a ``.jsonl.zst`` one.

    Raises:
        TraceError: it is not there, not readable, or there is nothing to unpack it with.
    """
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    decoder = msgspec.json.Decoder(Row)
    try:
        return decoder.decode_lines(_unpacked(packed) if path.suffix == ".zst" else packed)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path} is no Mooncake trace: {error}") from None


def _unpacked(packed: bytes) -> bytes:
    command = shutil.which("zstd")
    if command is None:
        raise TraceError("a .zst file needs the zstd command (Debian: apt-get install zstd), or unpack it by hand")
    done = subprocess.run([command, "-dc"], input=packed, capture_output=True, check=False)
    if done.returncode:
        raise TraceError(f"zstd could not unpack it: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def spread(rows: Iterable[Row], rng: Random, rate_scale: float = 1.0) -> Iterator[tuple[float, Row]]:
    """Arrival times from 0 on with their rows, in order: each row somewhere within its tick, `rate_scale` as fast."""
    timed = sorted(((row.timestamp * 1e-3 + rng.uniform(0.0, TICK_S), row) for row in rows), key=lambda pair: pair[0])
    start_s = timed[0][0] if timed else 0.0
    for at_s, row in timed:
        yield (at_s - start_s) / rate_scale, row


def prompt_ids(row: Row) -> array[int]:
    """Token ids for a row's prompt: a block's id stands for each of its tokens, so that equal prefixes are equal."""
    ids = array("I")
    for block_id in row.hash_ids:
        ids.extend(array("I", [block_id]) * BLOCK_TOKENS)
    return ids[: row.input_length]
