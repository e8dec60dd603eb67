import json
import shutil
import subprocess

import pytest

from loadtest.calibrate.recordings.recording import RecordingError, read_recording

NAME = "GPU_model"
FLAGS = {"data_parallel_size": 1, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
META = {"model": "some/model", "engine_kwargs": {**FLAGS, "seed": 1}, "num_requests": 2}
ROWS = [
    {
        "request_id": "late",
        "input_toks": 20,
        "output_toks": 1,
        "arrival_time": 1_000_002.0,
        "queued_ts": 52.5,
        "scheduled_ts": 52.6,
        "first_token_ts": 53.0,
        "last_token_ts": 53.0,
    },
    {
        "request_id": "early",
        "input_toks": 10,
        "output_toks": 5,
        "arrival_time": 1_000_001.0,
        "queued_ts": 51.0,
        "scheduled_ts": 51.0,
        "first_token_ts": 51.5,
        "last_token_ts": 53.5,
    },
]

pytestmark = pytest.mark.skipif(shutil.which("zstd") is None, reason="recordings are read by the zstd command")


def write(folder, meta=META, rows=ROWS):
    (folder / f"{NAME}.meta.json").write_text(json.dumps(meta))
    lines = "\n".join(json.dumps(row) for row in rows)
    packed = subprocess.run(["zstd", "-q", "-c"], input=lines.encode(), capture_output=True, check=True).stdout
    (folder / f"{NAME}.requests.jsonl.zst").write_bytes(packed)


def test_a_recording_is_read_on_one_clock_in_order_of_arrival(tmp_path):
    write(tmp_path)
    recording = read_recording(tmp_path / f"{NAME}.meta.json")
    assert (recording.model, recording.max_num_batched_tokens, recording.max_num_seqs) == ("some/model", 2048, 128)
    early, late = recording.requests
    # The quicker hand-over from front end to engine, that of "early", counts as none.
    assert (early.id, early.arrived_s, early.scheduled_s) == ("early", 0.0, 0.0)
    assert (early.ttft_s, early.tpot_s) == (0.5, 0.5)
    assert (late.arrived_s, late.ttft_s, late.tpot_s) == (1.0, 1.0, None)


@pytest.mark.parametrize(
    ("meta", "rows", "words"),
    [
        ({"model": "x"}, ROWS, "missing required field"),
        (META, [{"request_id": "a"}], "missing"),
        (META, [], "no req"),
        ({**META, "engine_kwargs": {**FLAGS, "data_parallel_size": 2}}, ROWS, "2 data-parallel ranks"),
    ],
)
def test_files_of_another_shape_are_refused_by_name(tmp_path, meta, rows, words):
    write(tmp_path, meta, rows)
    with pytest.raises(RecordingError, match=f"{NAME}.*{words}"):
        read_recording(tmp_path / f"{NAME}.meta.json")


def test_a_file_that_is_not_compressed_is_refused(tmp_path):
    write(tmp_path)
    (tmp_path / f"{NAME}.requests.jsonl.zst").write_text("{}")
    with pytest.raises(RecordingError, match="zst"):
        read_recording(tmp_path / f"{NAME}.meta.json")


def test_without_the_zstd_command_the_error_names_it(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecordingError, match="install zstd"):
        read_recording(tmp_path / f"{NAME}.meta.json")
