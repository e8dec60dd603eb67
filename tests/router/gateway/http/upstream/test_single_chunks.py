"""A read is one chunk exactly if it starts with the size line for its length and ends with a line break."""

from router.gateway.http.upstream.single_chunks import SHORT_BYTES, SIZE_LINES, TAIL_BYTES, size_lines


def test_each_possible_chunk_length_has_one_size_line():
    for size in range(1, 3 * SHORT_BYTES):
        whole = b"%x\r\n%s\r\n" % (size, b"x" * size)
        if TAIL_BYTES <= len(whole) < SHORT_BYTES:
            assert SIZE_LINES[len(whole)] == b"%x\r\n" % size
    assert len(set(SIZE_LINES) - {b"\0"}) == sum(line != b"\0" for line in SIZE_LINES)


def test_a_length_without_a_chunk_has_a_line_that_no_chunk_starts_with():
    lines = size_lines(64)
    lengths = {len(b"%x\r\n\r\n" % size) + size for size in range(1, 64)}
    assert {length for length, line in enumerate(lines) if line == b"\0"} == {
        length for length in range(64) if length not in lengths or length < TAIL_BYTES
    }
    assert len(b"f\r\n\r\n") + 15 == 20 and len(b"10\r\n\r\n") + 16 == 22 and lines[21] == b"\0"
