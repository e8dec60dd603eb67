"""The files of a decision log: rotated at a snapshot, compressed on request, and never in the way of the event loop."""

import gzip
import os
import time

import pytest

from router.config.model import DecisionLogConfig
from router.telemetry import decision_log_file as module
from router.telemetry.decision_log_file import DecisionLogFile, open_decision_log


def lines_of(path):
    opened = gzip.open if ".gz" in path.suffixes else open
    with opened(path, "rb") as file:
        return file.read().splitlines()


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz"])
def test_lines_are_written_in_order(tmp_path, name):
    path = tmp_path / name
    file = DecisionLogFile(path, 1_000_000, 3)
    for number in range(1_000):
        assert file.write(b"%d\n" % number)
    file.close()
    assert lines_of(path) == [b"%d" % number for number in range(1_000)]


def test_a_full_file_moves_on_and_the_oldest_goes(tmp_path):
    path = tmp_path / "d.jsonl.gz"
    file = DecisionLogFile(path, 10, 3)
    for number in range(5):
        assert not file.full
        file.write(b"%d 4567890\n" % number)
        assert file.full
        file.rotate()
    file.write(b"last\n")
    file.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["d.jsonl.gz", "d.jsonl.gz.1", "d.jsonl.gz.2"]
    assert lines_of(path) == [b"last"]
    assert lines_of(tmp_path / "d.jsonl.gz.2") == [b"3 4567890"]


def test_a_restart_keeps_the_old_file(tmp_path):
    path = tmp_path / "d.jsonl.gz"
    for text in (b"one\n", b"two\n"):
        file = DecisionLogFile(path, 1_000, 3)
        file.write(text)
        file.close()
    assert (lines_of(path), lines_of(tmp_path / "d.jsonl.gz.1")) == ([b"two"], [b"one"])


def test_what_is_no_regular_file_is_reported_and_left_in_place(tmp_path, caplog):
    pipe = tmp_path / "decisions"
    os.mkfifo(pipe)
    settings = DecisionLogConfig(path=str(pipe))
    assert open_decision_log(settings) is None
    assert caplog.records[0].reason == "not a regular file"
    assert [one.name for one in tmp_path.iterdir()] == ["decisions"]


def test_a_disk_that_is_too_slow_loses_lines_and_blocks_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 8)
    monkeypatch.setattr(DecisionLogFile, "_run", lambda self: None)
    file = DecisionLogFile(tmp_path / "d.jsonl.gz", 1_000, 3)
    assert [file.write(b"x\n") for _ in range(6)] == [True] * 4 + [False] * 2


def test_a_disk_that_fails_ends_the_log(tmp_path, caplog):
    path = tmp_path / "d.jsonl.gz"
    file = DecisionLogFile(path, 1_000, 3)

    def fail(text):
        raise OSError("No space left on device")

    file._put = fail
    file.write(b"x\n")
    file.close()
    assert file.write(b"y\n") is False
    assert "the decision log cannot be written and ends here" in caplog.text


def test_lines_are_on_disk_soon_while_the_log_is_open(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GATHER_S", 0.01)
    path = tmp_path / "d.jsonl.gz"
    file = DecisionLogFile(path, 1_000, 3)
    file.write(b"x\n")
    end_s = time.monotonic() + 10.0
    while file._done_bytes == 0 and time.monotonic() < end_s:
        time.sleep(0.01)
    with gzip.open(path, "rb") as written:
        assert written.readline() == b"x\n"
    file.close()


def test_lines_of_many_rotations_in_one_turn_reach_their_files(tmp_path):
    path = tmp_path / "d.jsonl"
    file = DecisionLogFile(path, 1, 4)
    for text in (b"a\n", b"b\n", b"c\n"):
        file.write(text)
        file.rotate()
    file.close()
    assert [lines_of(path.with_name(f"d.jsonl.{number}")) for number in (1, 2, 3)] == [[b"c"], [b"b"], [b"a"]]
