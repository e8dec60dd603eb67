import msgspec
import pytest

from loadtest.lab import store as stores
from loadtest.lab.measures import Figures, Measures
from loadtest.lab.store import Store, StoreError

FIGURES = msgspec.convert(
    {field.name: 1 for field in msgspec.structs.fields(Figures) if field.required} | {"hit_share": 0.5}, Figures
)
MEASURES = Measures(FIGURES, {"chat": FIGURES}, 1.0, 1.0, 0, 1.0, 1.0)


def test_a_result_is_there_for_the_next_run(cell, tmp_path):
    Store(tmp_path).add(cell(), MEASURES)
    again = Store(tmp_path)
    found = again.get(cell())
    assert found is not None and found.measures == MEASURES and found.cell["policy"] == "lpwl"
    assert again.get(cell(seed=1)) is None
    assert again.foreign == 0


def test_a_run_of_the_bisection_serves_a_load_at_the_same_rate(cell, tmp_path):
    Store(tmp_path).add(cell(load=None), MEASURES)
    found = Store(tmp_path).get(cell(load=1.0))
    assert found is not None and found.cell["load"] == 1.0


def test_a_line_that_was_cut_off_is_dropped_and_what_follows_is_whole(cell, tmp_path):
    Store(tmp_path).add(cell(), MEASURES)
    path = tmp_path / stores.FILE
    line = path.read_bytes()
    path.write_bytes(line + line[: len(line) // 2])
    torn = Store(tmp_path)
    torn.add(cell(seed=1), MEASURES)
    again = Store(tmp_path)
    assert again.get(cell()) and again.get(cell(seed=1))
    assert path.read_bytes().count(b"\n") == 2


def test_results_of_other_code_are_kept_counted_and_not_used(cell, tmp_path, monkeypatch):
    Store(tmp_path).add(cell(), MEASURES)
    with monkeypatch.context() as patch:
        patch.setattr(stores, "code_version", lambda: "other")
        patch.setattr("loadtest.lab.cell.code_version", lambda: "other")
        assert (Store(tmp_path).foreign, Store(tmp_path).get(cell())) == (1, None)
        Store(tmp_path).add(cell(), MEASURES)
    assert Store(tmp_path).get(cell()) and Store(tmp_path).foreign == 1


def test_a_line_of_something_else_is_named(tmp_path):
    (tmp_path / stores.FILE).write_text("{}\n")
    with pytest.raises(StoreError, match=r"cells\.jsonl, line 1, is no finished cell .* another --out"):
        Store(tmp_path)


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"--out .*file cannot be used"):
        Store(tmp_path / "file")
