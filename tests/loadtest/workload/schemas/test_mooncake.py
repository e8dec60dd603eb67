import json
from math import inf

import pytest

from loadtest.workload.draw import FIRST_FRESH_ID
from loadtest.workload.errors import TraceError
from loadtest.workload.schemas.known import typed_rows
from loadtest.workload.schemas.mooncake import SCHEMA
from loadtest.workload.text import chain
from loadtest.workload.trace import Trace
from tests.support.plans import reusable_tokens

ROWS = [
    {"timestamp": 0, "input_length": 1_100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 1_024, "output_length": 0, "hash_ids": [0, 1]},
    {"timestamp": 3_000, "input_length": 600, "output_length": 1, "hash_ids": [0, 9]},
]


def written(tmp_path, rows=ROWS):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_only_full_blocks_can_be_reused(tmp_path):
    trace = Trace.of(written(tmp_path))
    assert trace.schema.name == "mooncake" and trace.timetable.tick_s == 3.0
    plan = trace.draw(0, inf)
    calls = {session.id: session.calls[0] for session in plan.sessions}
    assert [calls[f"row-{number}"].prompt.tokens for number in (1, 2, 3)] == [1_100, 1_024, 600]
    chains = [chain(calls[f"row-{number}"].prompt, plan.block_tokens) for number in (1, 2, 3)]
    assert chains[0] == chains[1] and len(chains[2]) == 1 and chains[2][0] == chains[0][0]
    assert reusable_tokens(plan) == 1_024 + 512
    answers = [calls[f"row-{number}"].answer for number in (1, 2, 3)]
    assert [tokens for _, tokens in answers] == [5, 1, 1], "an answer is one token at least"
    assert len({id_ for id_, _ in answers}) == 3 and all(id_ >= FIRST_FRESH_ID for id_, _ in answers)


def test_a_part_of_a_block_may_have_no_id(tmp_path):
    row = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [4]}
    (session,) = Trace.of(written(tmp_path, [row])).draw(0, inf).sessions
    (known, fresh) = session.calls[0].prompt.pieces
    assert known == (4, 512) and fresh[1] == 88 and fresh[0] >= FIRST_FRESH_ID


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"input_length": "many"}, "input_length"),
        ({"input_length": 0}, ">= 1"),
        ({"timestamp": -1}, ">= 0"),
        ({"hash_ids": [0]}, "1 hash_ids for 1100 tokens: it takes one for each block of 512"),
        ({"hash_ids": [0, 1, 2, 3]}, "4 hash_ids for 1100"),
        ({"hash_ids": [0, 1, -2]}, ">= 0"),
        ({"hash_ids": None}, "hash_ids"),
    ],
)
def test_a_bad_row_is_named(tmp_path, wrong, complaint):
    path = written(tmp_path, [ROWS[0], ROWS[0] | wrong])
    with pytest.raises(TraceError, match=rf"trace.jsonl, row 2: not as mooncake rows are: .*{complaint}"):
        list(typed_rows(path, SCHEMA))
