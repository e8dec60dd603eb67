import json
from math import inf

import pytest

from loadtest.workload.errors import TraceError
from loadtest.workload.text import chain
from loadtest.workload.trace import Trace

HEAD = "session_id,arrival_time,round,prefix_len,input_len,output_len,tool_wait_after_ms\n"


def trace_of(tmp_path, text):
    path = tmp_path / "whatever"
    path.write_text(text)
    return Trace.of(path)


def test_a_round_waits_for_the_answer_and_the_tool(tmp_path):
    trace = trace_of(tmp_path, HEAD + "a,250,0,0,1000,100,1500\na,250,1,1100,64,50,0\nb,9000,0,0,32,1,0\n")
    assert trace.schema.name == "sessions"
    first, second = trace.draw(0, inf).sessions
    assert (first.id, second.id) == ("session-a", "session-b")
    opening, reply = first.calls
    assert (opening.pause_s, reply.pause_s) == (0.0, 1.5)
    assert reply.prompt.pieces[:2] == (*opening.prompt.pieces, opening.answer)
    assert reply.prompt.tokens == 1_164 and reply.kind == "agent" and reply.max_tokens is None


def test_a_shorter_prefix_is_where_the_conversation_was_cut(tmp_path):
    trace = trace_of(tmp_path, HEAD + "a,0,0,0,1000,100,0\na,0,1,500,64,50,0\n")
    opening, reply = trace.draw(0, inf).sessions[0].calls
    assert reply.prompt.tokens == 564
    assert chain(reply.prompt, 16)[:31] == chain(opening.prompt, 16)[:31]


def test_a_longer_prefix_is_text_that_nobody_has_seen(tmp_path):
    trace = trace_of(tmp_path, HEAD + "a,0,0,300,20,5,0\na,0,1,400,20,5,0\n")
    opening, reply = trace.draw(0, inf).sessions[0].calls
    assert [tokens for _, tokens in opening.prompt.pieces] == [300, 20]
    assert [tokens for _, tokens in reply.prompt.pieces] == [300, 20, 5, 75, 20]


def test_rows_come_in_any_order_and_under_other_names(tmp_path):
    rounds = [
        {"id": 7, "arrival_time_ms": 5_000.5, "round_idx": 1, "prefix_len": 12, "input_len": 5},
        {"id": 8, "arrival_time_ms": 6_000.0, "round_idx": 0, "prefix_len": 0, "input_len": 11},
        {"id": 7, "arrival_time_ms": 5_000.5, "round_idx": 0, "prefix_len": 0, "input_len": 10},
    ]
    rest = {"output_len": 2, "tool_wait_after_ms": 0, "more": "is passed over"}
    trace = trace_of(tmp_path, "\n".join(json.dumps(one | rest) for one in rounds))
    first, second = trace.draw(0, inf).sessions
    assert [call.prompt.tokens for call in first.calls] == [10, 17]
    assert first.start_s == 0.0 and second.start_s == pytest.approx(0.9995)


def test_a_session_lies_wholly_in_the_window_that_it_arrives_in(tmp_path):
    rows = "".join(f"{n},{n * 10_123},{k},{k * 20},16,4,600\n" for n in range(50) for k in range(3))
    plan = trace_of(tmp_path, HEAD + rows).draw(1, 100.0)
    assert 9 <= len(plan.sessions) <= 10
    assert all(len(session.calls) == 3 for session in plan.sessions[:-1])


def test_rounds_that_come_after_the_last_arrival_are_in(tmp_path):
    rows = "".join(f"{n},{n * n * 151},{k},{k * 20},16,4,10000\n" for n in range(20) for k in range(30))
    trace = trace_of(tmp_path, HEAD + rows)
    assert trace.draw(0, inf).calls == 600
    plan = trace.draw(0, 1_200.0)
    assert plan.calls == 600 and plan.duration_s == pytest.approx(19 * 19 * 0.151 + 29 * 10, abs=0.01)
    at_once = trace_of(
        tmp_path, HEAD + "".join(f"{n},0,{k},{k * 20},16,4,10000\n" for n in range(20) for k in range(30))
    )
    assert at_once.draw(0, 1_200.0).calls == 600
    cut = at_once.draw(0, 45.0)
    assert cut.duration_s == 45.0 and {len(session.calls) for session in cut.sessions} == {5}


def test_a_bad_row_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"row 1: not as sessions rows are: .*nothing is asked"):
        trace_of(tmp_path, HEAD + "a,0,0,0,0,5,0\n")
