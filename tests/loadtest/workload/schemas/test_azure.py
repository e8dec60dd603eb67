import pytest

from loadtest.workload.errors import TraceError
from loadtest.workload.trace import Trace
from tests.support.plans import reusable_tokens

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def trace_of(tmp_path, *rows):
    path = tmp_path / "whatever"
    path.write_bytes((HEAD + "".join(f"{row}\r\n" for row in rows)).encode())
    return Trace.of(path)


def test_rows_arrive_as_they_did(tmp_path):
    trace = trace_of(
        tmp_path,
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.9799600,3180,0",
        "2023-11-16 18:17:05.1799600+00:00,3180,8",
    )
    assert trace.schema.name == "azure"
    plan = trace.draw(0, 3_600.0)
    assert [session.calls[0].prompt.tokens for session in plan.sessions] == [4808, 3180, 3180]
    assert [session.calls[0].answer[1] for session in plan.sessions] == [10, 1, 8]
    assert plan.sessions[0].start_s == 0.0 and reusable_tokens(plan) == 0


@pytest.mark.parametrize("row", ["yesterday,1,1", "2023-11-16 18:17:03,0,1", "2023-11-16 18:17:03,1,x"])
def test_a_bad_row_is_named(tmp_path, row):
    with pytest.raises(TraceError, match="row 1: not as azure rows are"):
        trace_of(tmp_path, row)
