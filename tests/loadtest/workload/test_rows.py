import pytest

from loadtest.workload.errors import TraceError
from loadtest.workload.rows import records


def written(tmp_path, text):
    path = tmp_path / "rows"
    path.write_text(text)
    return path


def test_a_csv_file_has_a_header(tmp_path):
    path = written(tmp_path, '\n a ,b\n1,"x, y"\n\n2,z\n')
    assert list(records(path)) == [(1, {"a": "1", "b": "x, y"}), (2, {"a": "2", "b": "z"})]


def test_objects_stand_one_on_a_line(tmp_path):
    path = written(tmp_path, '{"a": 1}\n\n {"a": [2]}\n')
    assert list(records(path)) == [(1, {"a": 1}), (2, {"a": [2]})]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no rows"),
        ("  \n\n", "has no rows"),
        ('{"a": 1}\n[1]\n', "row 2: it is no JSON object"),
        ("[1, 2]\n", "row 1: it is no JSON object"),
        ('{"a": 1}\n{"a"\n', "row 2: it is no JSON object"),
        ("a,b\n1,2\n1\n", "row 2: 1 fields under a header of 2"),
        ('a,b\n1,2\n3,"' + "x" * 200_000 + '"\n', "line 3: field larger than"),
    ],
)
def test_an_error_names_its_row(tmp_path, text, complaint):
    with pytest.raises(TraceError, match=complaint):
        list(records(written(tmp_path, text)))
