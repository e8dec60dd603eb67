import json

import pytest

from loadtest.workload.errors import TraceError
from loadtest.workload.schemas.bailian import ANSWER_S_PER_TOKEN
from loadtest.workload.trace import Trace


def row(chat_id, parent, at_s, ids, tokens=None, output=10, type_="text", turn=1):
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": at_s,
        "input_length": tokens or 16 * len(ids),
        "output_length": output,
        "type": type_,
        "turn": turn,
        "hash_ids": ids,
    }


def trace_of(tmp_path, rows):
    path = tmp_path / "whatever"
    path.write_text("\n".join(json.dumps(one) for one in rows))
    return Trace.of(path)


ROWS = [
    row(1, -1, 0.5, [7, 8, 9], tokens=40, output=100),
    row(2, -1, 1.0, [7, 5], type_="search"),
    row(3, 1, 10.5, [7, 8, 11, 12], turn=2),
    row(4, 1, 11.25, [7, 8, 13], turn=2),
    row(5, 3, 10.75, [7, 8, 11, 12, 14], turn=3),
]


def test_a_turn_follows_its_parent_s_answer(tmp_path):
    trace = trace_of(tmp_path, ROWS)
    assert trace.schema.name == "bailian"
    plan = trace.whole()
    assert plan.block_tokens == 16
    sessions = {session.id: session for session in plan.sessions}
    assert set(sessions) == {"chat-1", "chat-2", "chat-4"}, "row 4 branches off from what has been followed"
    chat = sessions["chat-1"]
    assert [call.prompt.tokens for call in chat.calls] == [40, 64, 80]
    assert chat.calls[1].pause_s == pytest.approx(10.0 - 100 * ANSWER_S_PER_TOKEN)
    assert chat.calls[2].pause_s == 0.0, "the gap was shorter than the answer takes"
    assert sessions["chat-4"].start_s == pytest.approx(10.75)
    assert sessions["chat-2"].calls[0].kind == "search"


def test_equal_blocks_are_equal_text(tmp_path):
    plan = trace_of(tmp_path, ROWS).whole()
    assert plan.reusable_tokens == 16 + 32 + 64 + 32


def test_a_turn_whose_parent_lies_before_the_window_begins_a_session(tmp_path):
    rows = [row(number, number - 1 if number else -1, 100.0 * number, [1, number]) for number in range(40)]
    plan = trace_of(tmp_path, rows).draw(3, 500.0)
    (session,) = plan.sessions
    assert 4 <= len(session.calls) <= 5 and session.id != "chat-0"


def test_a_bad_row_is_named(tmp_path):
    with pytest.raises(TraceError, match="row 2: not as bailian rows are: 3 hash_ids for 200 tokens"):
        trace_of(tmp_path, [ROWS[0], row(2, -1, 1.0, [1, 2, 3], tokens=200)])
