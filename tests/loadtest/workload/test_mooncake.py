import json
import shutil
import subprocess
from random import Random

import pytest

from loadtest.workload.mooncake import BLOCK_TOKENS, TICK_S, TraceError, prompt_ids, read_rows, spread

ROWS = [
    {"timestamp": 0, "input_length": 1_100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 1_024, "output_length": 7, "hash_ids": [0, 1]},
    {"timestamp": 3_000, "input_length": 600, "output_length": 1, "hash_ids": [0, 9]},
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    return path


def test_equal_ids_are_equal_text_from_the_start_on(trace):
    first, second, third = (prompt_ids(row) for row in read_rows(trace))
    assert [len(ids) for ids in (first, second, third)] == [1_100, 1_024, 600]
    assert first[:1_024] == second
    assert first[:BLOCK_TOKENS] == third[:BLOCK_TOKENS] and first[BLOCK_TOKENS] != third[BLOCK_TOKENS]


def test_rows_are_spread_within_their_ticks(trace):
    rows = read_rows(trace)
    spread_out = list(spread(rows, Random(0)))
    times = [at_s for at_s, _ in spread_out]
    assert times[0] == 0.0 and times == sorted(times) and len(set(times)) == 3
    assert times[-1] < 2 * TICK_S
    assert list(spread(rows, Random(0))) == spread_out != list(spread(rows, Random(1)))
    fast = [at_s for at_s, _ in spread(rows, Random(0), rate_scale=2.0)]
    assert fast == pytest.approx([at_s / 2 for at_s in times])


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd command")
def test_a_packed_trace_is_unpacked(trace):
    subprocess.run(["zstd", "-q", str(trace)], check=True)
    assert read_rows(trace.with_suffix(".jsonl.zst")) == read_rows(trace)
    broken = trace.with_name("broken.zst")
    broken.write_bytes(b"no zstandard frame")
    with pytest.raises(TraceError, match="zstd could not unpack"):
        read_rows(broken)


def test_what_is_no_trace_is_said(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_rows(tmp_path / "absent.jsonl")
    path = tmp_path / "other.jsonl"
    path.write_text('{"question": "?"}')
    with pytest.raises(TraceError, match="no Mooncake trace"):
        read_rows(path)
