"""The formats of Bailian, BurstGPT and WEKA, and vLLM's timed_trace."""

import json
from math import inf

import pytest

from loadtest.workload.errors import TraceError
from loadtest.workload.schemas import bailian
from loadtest.workload.trace import Trace

TURN = {"timestamp": 2.5, "input_length": 40, "output_length": 7, "hash_ids": [1, 2, 3]}
CHAT = {"chat_id": 5, "parent_chat_id": -1, "type": "text", "turn": 1}


def written(tmp_path, *rows):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def sessions(path, schema=None):
    return Trace.of(path, schema).draw(0, inf).sessions


def test_bailian_has_seconds_and_blocks_of_16(tmp_path):
    rows = [{**CHAT, **TURN}, {**CHAT, **TURN, "timestamp": 0.25, "hash_ids": [1, 2]}]
    path = written(tmp_path, *rows)
    assert Trace.of(path).schema.name == "bailian"
    first, second = sessions(path)  # rows need not be in order, and a chat id may come again
    assert second.start_s - first.start_s == pytest.approx(2.25)
    assert second.calls[0].prompt.pieces == ((1, 16), (2, 16), (3, 8)) and second.calls[0].kind == "text"
    assert first.calls[0].prompt.pieces[:2] == ((1, 16), (2, 16))  # the part of a block without an id is new text


def test_vllms_timed_trace_is_read_by_its_name(tmp_path):
    path = written(tmp_path, TURN)
    assert sessions(path, bailian.TIMED)[0].calls[0].prompt.tokens == 40
    with pytest.raises(TraceError, match="of 512 tokens"):
        Trace.of(path)


def test_burstgpt_leaves_failures_out(tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,99,0,99,API log\n118,GPT-4,1087,230,1317,API log\n"
    )
    one, other = sessions(path)
    assert (one.calls[0].kind, one.calls[0].prompt.tokens, one.calls[0].answer[1]) == ("ChatGPT", 472, 18)
    assert other.start_s - one.start_s == pytest.approx(113.0)


def test_an_agentic_conversation_is_a_closed_loop_with_its_subagents(tmp_path):
    asks = [
        {"t": 0.0, "in": 200, "out": 9, "hash_ids": [0, 1, 2]},
        {"type": "subagent", "agent_id": "a", "requests": [{"t": 3.0, "in": 64, "out": 0, "hash_ids": [7]}]},
        {"t": 4.5, "in": 300, "out": 5, "hash_ids": [0, 1, 2, 3]},
    ]
    row = {"id": "c", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": asks}
    one, other = sessions(written(tmp_path, row, {**row, "id": "d"}))
    assert [call.pause_s for call in one.calls] == [0.0, 3.0, 1.5]
    assert [call.prompt.tokens for call in one.calls] == [200, 64, 300]
    assert one.calls[2].prompt.pieces[:3] == one.calls[0].prompt.pieces[:3]
    assert one.calls[0].prompt.pieces[0] != other.calls[0].prompt.pieces[0]  # local ids
    shared = sessions(written(tmp_path, {**row, "hash_id_scope": "global"}, {**row, "id": "d", "hash_id_scope": "g"}))
    assert shared[0].calls[0].prompt.pieces[0] == shared[1].calls[0].prompt.pieces[0]


@pytest.mark.parametrize(
    "rows", [{"id": 1, "requests": [{"in": -1}]}, {"id": 1, "requests": 5}, {"id": 1, "requests": [{"requests": [7]}]}]
)
def test_a_wrong_conversation_is_refused(tmp_path, rows):
    with pytest.raises(TraceError, match="row 1"):
        Trace.of(written(tmp_path, rows))
