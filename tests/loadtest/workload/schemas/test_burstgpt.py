import pytest

from loadtest.workload.errors import TraceError
from loadtest.workload.trace import Trace

HEAD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def trace_of(tmp_path, rows):
    path = tmp_path / "whatever"
    path.write_text(HEAD + rows)
    return Trace.of(path)


def test_rows_share_nothing_and_failures_are_left_out(tmp_path):
    rows = (
        "5,ChatGPT,472,18,490,Conversation log\n5,GPT-4,100,7,107,API log\n"
        "7,ChatGPT,9,0,9,API log\n8,GPT-4,0,0,0,API log\n"
        "9,GPT-4,100,7,107,Something else\n"
    )
    trace = trace_of(tmp_path, rows)
    assert trace.schema.name == "burstgpt" and trace.timetable.rows == 3
    plan = trace.whole()
    assert {session.calls[0].kind for session in plan.sessions} == {"chat", "api", "request"}
    assert sorted(session.calls[0].prompt.tokens for session in plan.sessions) == [100, 100, 472]
    assert sorted(session.calls[0].answer[1] for session in plan.sessions) == [7, 7, 18]
    assert plan.reusable_tokens == 0


def test_a_bad_row_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"row 2: not as burstgpt rows are: .*Request tokens"):
        trace_of(tmp_path, "5,ChatGPT,472,18,490,API log\n6,ChatGPT,-3,18,490,API log\n")


@pytest.mark.parametrize(
    ("row", "field"),
    [("inf,ChatGPT,3,18", "Timestamp"), ("1e300,ChatGPT,3,18", "Timestamp"), ("nan,ChatGPT,3,18", "Timestamp"),
     ("5,ChatGPT,10000001,18", "Request tokens"), ("5,ChatGPT,3,1000000000000", "Response tokens")],
)  # fmt: skip
def test_an_impossible_row_is_named_and_not_drawn(tmp_path, row, field):
    with pytest.raises(TraceError, match=rf"row 2: not as burstgpt rows are: .*{field}"):
        trace_of(tmp_path, f"5,ChatGPT,472,18,490,API log\n{row},0,API log\n")


def test_a_trace_of_failures_only_cannot_be_replayed(tmp_path):
    with pytest.raises(TraceError, match="no row that can be replayed"):
        trace_of(tmp_path, "5,ChatGPT,472,0,472,API log\n")


def test_three_columns_are_enough(tmp_path):
    path = tmp_path / "whatever"
    path.write_text("Timestamp,Request tokens,Response tokens\n0.5,3,16\n1.25,2,16\n")
    plan = Trace.of(path).whole()
    assert [(session.start_s, session.calls[0].kind) for session in plan.sessions] == [
        (0.0, "request"),
        (0.75, "request"),
    ]
