import gzip
import shutil
import subprocess

import pytest

from loadtest.workload.errors import TraceError
from loadtest.workload.rows import opened, records

TEXT = "a,b\r\n" + "".join(f"{number},{number * 7}\r\n" for number in range(20_000))
needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd command")


def zstd(path):
    subprocess.run(["zstd", "-q", "--rm", str(path)], check=True)
    return path.with_name(path.name + ".zst")


def plain(path):
    return path


def gz(path):
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(TEXT.encode("utf-8-sig"))
    return path


packings = pytest.mark.parametrize("pack", [gz, pytest.param(zstd, marks=needs_zstd)])


@pytest.fixture(params=[plain, gz, pytest.param(zstd, marks=needs_zstd)])
def packed(request, rows):
    return request.param(rows)


def test_packed_or_not_the_text_is_the_same(packed):
    with opened(packed) as text:
        assert text.read() == TEXT


def test_whoever_has_read_enough_may_stop(packed):
    rows = records(packed)
    assert next(rows) == (1, {"a": "0", "b": "0"})
    rows.close()


@packings
def test_a_truncated_file_is_reported(pack, rows):
    packed = pack(rows)
    packed.write_bytes(packed.read_bytes()[:-2_000])
    complaint = f"cannot be read as {'Zstandard' if pack is zstd else 'gzip'}, as its name says"
    with pytest.raises(TraceError, match=complaint):
        list(records(packed))


@needs_zstd
def test_a_broken_zst_file_is_not_reported_as_a_bad_row(tmp_path):
    broken = tmp_path / "broken.zst"
    broken.write_bytes(b"no zstandard frame")
    with pytest.raises(TraceError, match="cannot be read as Zstandard"):
        list(records(broken))


def test_without_the_command_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "rows.zst"
    path.touch()
    with pytest.raises(TraceError, match="needs the zstd command"):
        list(records(path))


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.gz", "absent.zst"])
def test_a_file_that_is_not_there(tmp_path, name):
    with pytest.raises(TraceError, match=f"{name} cannot be read"):
        list(records(tmp_path / name))


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "picture.jsonl"
    path.write_bytes(b"\x89PNG\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot be read as"):
        list(records(path))
    zipped = tmp_path / "rows.gz"
    zipped.write_bytes(b"plain after all")
    with pytest.raises(TraceError, match="cannot be read as"):
        list(records(zipped))
