"""Recognise reads that are exactly one chunk, as a token of a stream usually is."""

from __future__ import annotations

TAIL_BYTES = 8
"""The bytes at the end of a response that show where it ends. A shorter read is no single chunk."""
# Covers an event with a few tokens and their logprobs. Larger reads are rare and take the ordinary way.
SHORT_BYTES = 2_048


def size_lines(limit: int) -> tuple[bytes, ...]:
    """Return, by a chunk's length on the wire (framing included), the size line that such a chunk must have.

    Lengths that no chunk has map to a byte that no chunk starts with.
    """
    # No length belongs to two sizes: one more hexadecimal digit means sixteen times the content.
    lines = [b"\0"] * limit
    for size in range(1, limit):
        line = b"%x\r\n" % size
        length = len(line) + size + 2
        if TAIL_BYTES <= length < limit:
            lines[length] = line
    return tuple(lines)


SIZE_LINES = size_lines(SHORT_BYTES)
