from dataclasses import replace

import msgspec
import pytest

from loadtest.lab.aggregate import Asked
from loadtest.lab.sources import drawn
from loadtest.workload.errors import WorkloadError

ROWS = (
    {"session_id": "a", "arrival_time": 0, "round": 0, "prefix_len": 0, "input_len": 40, "output_len": 9},
    {"session_id": "a", "arrival_time": 0, "round": 1, "prefix_len": 49, "input_len": 20, "output_len": 5},
    {"session_id": "b", "arrival_time": 9_000, "round": 0, "prefix_len": 0, "input_len": 48, "output_len": 1},
    {"session_id": "b", "arrival_time": 9_000, "round": 1, "prefix_len": 48, "input_len": 0, "output_len": 1},
)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "sessions.jsonl"
    rows = [row | {"tool_wait_after_ms": 2_000} for row in ROWS]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return str(path)


def test_reusable_tokens_are_those_an_endless_cache_would_hold(trace):
    found = drawn(trace, 0, 20.0, 1.0, None)
    assert found.asked == {
        "session-a/0": Asked("agent", 0),
        "session-a/1": Asked("agent", 48),  # of the 40 + 9 before, the last token was never computed
        "session-b/0": Asked("agent", 0),
        "session-b/1": Asked("agent", 32),  # the same 48 tokens again: the last of them has to be computed
    }
    assert drawn(trace, 0, 20.0, 1.0, 32).asked["session-a/1"] == Asked("agent", 32)


def test_calls_of_their_own_are_the_same_at_every_rate(tmp_path):
    path = tmp_path / "rows.csv"
    rows = "".join(f"2023-11-16T18:00:{number:02},20,9\n" for number in range(30))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    usual, faster = drawn(str(path), 0, 20.0, 1.0, None), drawn(str(path), 0, 20.0, 4.0, None)
    assert faster.length_s == usual.length_s / 4
    moved = [replace(session, start_s=session.start_s / 4) for session in usual.plan.sessions]
    assert list(faster.plan.sessions) == moved
    assert faster.asked is usual.asked


def test_faster_arrivals_leave_pauses_as_they_are_and_sessions_whole(trace):
    usual, faster = drawn(trace, 0, 20.0, 1.0, None), drawn(trace, 0, 20.0, 4.0, None)
    assert [session.calls for session in faster.plan.sessions] == [session.calls for session in usual.plan.sessions]
    starts_s = [session.start_s for session in usual.plan.sessions]
    assert [session.start_s for session in faster.plan.sessions] == pytest.approx([start_s / 4 for start_s in starts_s])
    for found, rate in ((usual, 1.0), (faster, 4.0)):
        last_s = max(start_s / rate + 2.0 for start_s in starts_s)
        assert found.length_s == pytest.approx(max(18.0 / rate, last_s + 0.001)), "until the last call is sent"
    assert drawn(trace, 0, 3.0, 4.0, None).length_s == 3.0


def test_sessions_get_as_far_at_every_rate(tmp_path):
    row = {"prefix_len": 0, "input_len": 40, "output_len": 9, "tool_wait_after_ms": 2_500}
    rows = (
        row | {"session_id": number, "arrival_time": number * 1_000, "round": turn}
        for number in range(500)
        for turn in range(20)
    )
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))

    def turns(rate):
        found = drawn(str(path), 0, 75.0, rate, None)
        assert found.length_s == 75.0
        return found.plan.calls / len(found.plan.sessions)

    assert turns(1.0) == pytest.approx(turns(4.0), rel=0.05) == pytest.approx(14.0, rel=0.1)


def test_a_generator_fills_the_window_at_any_rate():
    usual, faster = (drawn("generator:no_reuse:rate_per_s=2", 0, 30.0, rate, None) for rate in (1.0, 4.0))
    assert usual.length_s == faster.length_s == 30.0
    assert len(faster.plan.sessions) > 2 * len(usual.plan.sessions)


def test_a_source_that_there_is_not_is_named(tmp_path):
    with pytest.raises(WorkloadError, match="there is no generator 'nothing'"):
        drawn("generator:nothing", 0, 10.0, 1.0, None)
    with pytest.raises(WorkloadError, match="nowhere"):
        drawn(str(tmp_path / "nowhere"), 0, 10.0, 1.0, None)
