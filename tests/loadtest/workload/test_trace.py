import json
import pickle
import shutil
import subprocess
import tracemalloc
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pytest

from loadtest.workload.errors import TraceError
from loadtest.workload.schemas.known import SCHEMAS, recognise
from loadtest.workload.trace import Ticks, Trace
from tests.support.plans import prompt_tokens, reusable_tokens

TRACES = Path(__file__).parents[4] / "shared" / "traces"
CONVERSATION = TRACES / "conversation_trace.jsonl.zst"


def ticks(*times):
    seen = Ticks()
    for at_s in times:
        seen.see(at_s)
    return seen.step_s


def test_ticks_are_seen_where_timestamps_were_rounded():
    assert ticks(0.0, 0.0, 3.0, 5.999, 5.999, 12.0) == pytest.approx(3.0)
    assert ticks(5, 6, 6, 9) == pytest.approx(1.0)


def test_other_timestamps_are_times():
    assert ticks() == ticks(4.0) == 0.0
    assert ticks(0.0, 3.0, 6.0) == 0.0, "no two rows share one: nothing has been rounded together"
    assert ticks(0.0, 0.0, 3.0, 4.7) == 0.0, "no multiples of one step"
    assert ticks(0.0, 0.0, 0.04, 0.08) == 0.0 and ticks(0.0, 0.0, 60.0) == 0.0
    assert ticks(0.0, *(n * n * 1.01 for n in range(1, 1_500)), 0.0, 0.0) == 0.0


def mooncake(tmp_path, rows=400, step_ms=3_000, per_tick=4):
    path = tmp_path / "some.trace.jsonl"
    with path.open("w") as text:
        for number in range(rows):
            at_ms = number // per_tick * step_ms
            row = {"timestamp": at_ms, "input_length": 520, "output_length": 9, "hash_ids": [number % 7, 100 + number]}
            text.write(json.dumps(row) + "\n")
    return Trace.of(path)


def test_equal_seeds_draw_equal_windows_and_others_others(tmp_path):
    trace = mooncake(tmp_path)
    plan = trace.draw(5, 60.0)
    assert plan == trace.draw(5, 60.0) == pickle.loads(pickle.dumps(trace)).draw(5, 60.0)
    assert plan.name == "some" and plan.duration_s == 60.0 and plan.block_tokens == 512
    others = [trace.draw(seed, 60.0) for seed in range(4)]
    assert len({other.sessions[0].id for other in others}) == 4
    assert all(0.0 <= session.start_s < 60.0 for other in others for session in other.sessions)
    assert all(70 <= other.calls <= 90 for other in others)


def test_rows_are_spread_within_their_tick(tmp_path):
    whole = mooncake(tmp_path, rows=4_000).draw(1, inf)
    assert whole.calls == 4_000 and whole.duration_s == pytest.approx(3_000.0)
    late = []
    for session in whole.sessions:
        number = int(session.id.removeprefix("row-")) - 1
        late.append(session.start_s - number // 4 * 3.0)
    assert min(late) >= 0.0 and max(late) <= 3.0
    assert sum(late) / len(late) == pytest.approx(1.5, abs=0.05)


def test_a_faster_run_takes_more_of_the_trace_in_the_same_time(tmp_path):
    trace = mooncake(tmp_path)
    slow, fast = trace.draw(2, 60.0), trace.draw(2, 60.0, faster=3.0)
    assert fast.duration_s == pytest.approx(60.0)
    assert fast.calls == pytest.approx(3 * slow.calls, rel=0.1)


def test_a_trace_too_short_for_the_window_is_taken_whole(tmp_path):
    trace = mooncake(tmp_path)
    plan = trace.draw(2, 60.0, faster=100.0)
    assert plan.calls == 400 and plan.duration_s == pytest.approx(trace.timetable.span_s / 100.0)
    assert [session.start_s * 100.0 for session in plan.sessions] == pytest.approx(
        [session.start_s for session in trace.draw(2, inf).sessions]
    )


def test_a_file_costs_its_window_and_not_its_length(tmp_path):
    path = tmp_path / "long.csv"
    with path.open("w") as text:
        text.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for number in range(20_000):
            text.write(f"{datetime.fromtimestamp(number, UTC).isoformat()},{number % 900 + 1},18\n")
    tracemalloc.start()
    plan = Trace.of(path).draw(0, 600.0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 599 <= plan.calls <= 600
    assert peak_bytes < 1_000_000, "20,000 rows held would take several times as much"


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd command")
@pytest.mark.parametrize("wrong", ["{}\n", ""])
def test_a_file_that_was_cut_off_is_said_to_be_before_its_rows_are(tmp_path, wrong):
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}
    path.write_text((json.dumps(row) + "\n") * 3 + wrong)
    subprocess.run(["zstd", "-q", "--check", str(path)], check=True)
    packed = path.with_name("trace.jsonl.zst")
    packed.write_bytes(packed.read_bytes()[:-3])
    with pytest.raises(TraceError, match="cannot be read as Zstandard"):
        Trace.of(packed)


def test_a_schema_is_recognised_by_its_fields():
    for schema in SCHEMAS:
        assert recognise([*schema.fields, "another"]) is schema
        for missing in schema.fields:
            assert recognise(schema.fields - {missing}) is not schema
    assert recognise(["question"]) is None


def test_an_unknown_schema_is_answered_with_those_there_are(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt,answer\n1,2\n")
    with pytest.raises(
        TraceError, match=r"trace.csv: no known schema has the fields prompt, answer; known are"
    ) as told:
        Trace.of(path)
    assert all(field in str(told.value) for schema in SCHEMAS for field in (schema.name, *schema.fields))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(TraceError, match="a header and no rows"):
        Trace.of(path)


@pytest.mark.skipif(not CONVERSATION.exists(), reason="needs ../shared/traces")
def test_the_conversation_trace_is_as_published():
    trace = Trace.of(CONVERSATION)
    assert (trace.schema.name, trace.timetable.tick_s) == ("mooncake", 3.0)
    plan = trace.draw(0, inf)
    assert plan.calls == 12_031
    assert reusable_tokens(plan) / prompt_tokens(plan) == pytest.approx(0.37338, abs=0.00001)
    ids = [id_ for session in plan.sessions for id_, _ in session.calls[0].prompt.pieces]
    published = (len(ids) - len(set(ids))) * 512 / prompt_tokens(plan)
    assert published == pytest.approx(0.374, abs=0.0005), "takes a part of a block that comes again for a whole one"
    lengths = sorted(session.calls[0].prompt.tokens for session in plan.sessions)
    assert sum(lengths) // len(lengths) == 12_035 and lengths[-1] == 126_195


@pytest.mark.skipif(not CONVERSATION.exists(), reason="needs ../shared/traces")
@pytest.mark.parametrize(("name", "rows", "mean_tokens"), [("code", 8_819, 2_048), ("conv", 19_366, 1_155)])
def test_azure_s_traces_are_as_published(name, rows, mean_tokens):
    trace = Trace.of(TRACES / "azure2023" / f"AzureLLMInferenceTrace_{name}.csv.zst")
    plan = trace.draw(0, inf)
    assert (trace.schema.name, trace.timetable.tick_s, plan.calls, reusable_tokens(plan)) == ("azure", 0.0, rows, 0)
    assert prompt_tokens(plan) / plan.calls == pytest.approx(mean_tokens, abs=1.0)
