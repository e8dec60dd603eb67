import gzip
import json
from pathlib import Path

import pytest

from loadtest.plan.log_trace import Recorded, log_trace
from loadtest.workload.errors import WorkloadError
from loadtest.workload.plan import reusable_by_call
from loadtest.workload.trace import Trace
from tests.router.placement.test_decision_log import conversations, recorded


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "decisions.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(recorded("round_robin")[0].lines)))
    return path


def test_a_log_becomes_a_trace_of_its_requests(log, tmp_path):
    path = tmp_path / "log.jsonl"
    log_trace([log], path)
    rows = sorted(rows_of(path), key=lambda row: row["timestamp"])
    asked = conversations()
    assert [row["input_length"] for row in rows] == [len(tokens) for _, tokens, _ in asked]
    assert [row["output_length"] for row in rows] == [output_tokens for _, _, output_tokens in asked]
    gaps_s = [(row["timestamp"] - rows[0]["timestamp"]) / 1e3 for row in rows]
    assert gaps_s == pytest.approx([at_s - asked[0][0] for at_s, _, _ in asked], abs=1e-3)
    assert not list(tmp_path.glob("*.raw"))


def test_the_last_seconds_are_those_before_the_latest_line(log, tmp_path):
    log_trace([log], tmp_path / "all.jsonl")
    log_trace([log], tmp_path / "last.jsonl", last_s=1.0)
    every, last = (sorted(row["timestamp"] for row in rows_of(tmp_path / f"{one}.jsonl")) for one in ("all", "last"))
    assert 0 < len(last) < len(every) and last == every[-len(last) :]
    assert last[-1] - last[0] <= 1_000


def test_prompts_share_what_they_shared(log, tmp_path):
    path = tmp_path / "log.jsonl"
    log_trace([log], path)
    trace = Trace.of(path)
    assert (trace.schema.name, trace.schema.block_tokens) == ("sized_blocks", 64)
    found = [reused for _, _, reused in reusable_by_call(trace.draw(0, 1e6).sessions, 64)]
    seen, expected = set(), []
    for _, tokens, _ in conversations():
        prefixes = [tuple(tokens[: end + 64]) for end in range(0, len(tokens) - 63, 64)]
        expected.append(64 * sum(prefix in seen for prefix in prefixes))
        seen.update(prefixes)
    assert found == expected and sum(found) > 10_000


def test_gaps_of_a_log_of_samples_are_left_out():
    clock = Recorded([(600.0, 660.0), (0.0, 60.0), (30.0, 61.5), (62.0, 70.0)])
    assert [clock.at_s(at_s) for at_s in (0.0, 50.0, 69.0, 600.0, 630.0)] == [0.0, 50.0, 69.0, 70.0, 100.0]
    assert clock.at_s(-5.0) == 0.0


def test_an_answer_of_unknown_length_has_the_mean_length(log, tmp_path):
    lines = gzip.decompress(log.read_bytes()).splitlines(keepends=True)
    kept, dropped = [], 0
    for line in lines:
        if b'"finished"' in line and dropped < 3:
            dropped += 1
        else:
            kept.append(line)
    part = tmp_path / "part.jsonl"
    part.write_bytes(b"".join(kept))
    log_trace([part], tmp_path / "log.jsonl")
    lengths = [row["output_length"] for row in rows_of(tmp_path / "log.jsonl")]
    assert len(lengths) == 48 and len([one for one in lengths if one not in (5, 40)]) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"a": 1}\n', "line 1: not of a decision log"),
        (b'{"type":"snapshot","version":1,"at_s":0,"wall_s":0,"policies":[]}\n', "line 1: .*version 1"),
        (b"", "no request has the length of its answer"),
    ],
    ids=["other", "version", "empty"],
)
def test_what_is_no_log_is_refused(text, says, tmp_path):
    (tmp_path / "other.jsonl").write_bytes(text)
    with pytest.raises(WorkloadError, match=says):
        log_trace([tmp_path / "other.jsonl"], tmp_path / "log.jsonl")
    with pytest.raises(WorkloadError, match="cannot be read"):
        log_trace([Path("/nowhere")], tmp_path / "log.jsonl")
