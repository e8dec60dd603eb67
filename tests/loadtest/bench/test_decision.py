import json
import sys

from loadtest.bench.parts import decision


def test_it_prints_the_bar_beside_the_time_of_each_size(monkeypatch, tmp_path, capsys):
    rows = tmp_path / "rows.json"
    words = ["decision", "--workers", "2", "8", "--rounds", "3", "--tokens", "512", "--json", str(rows)]
    monkeypatch.setattr(sys, "argv", words)
    decision.main()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("   2 workers  marginal_cost") and "bar" not in first
    assert second.startswith("   8 workers  marginal_cost") and second.endswith("bar     90 us")
    found = json.loads(rows.read_text())["rows"]
    assert [row["workers"] for row in found] == [2, 8] and all(0.0 < row["p50_us"] <= row["p99_us"] for row in found)


def test_views_and_arrays_are_measured_by_the_threshold(monkeypatch, capsys):
    monkeypatch.setattr(decision.fleet_load, "ARRAYS_FROM", decision.ARRAYS_FROM)
    words = ["decision", "--workers", "3", "--rounds", "2", "--tokens", "64", "--arrays-from", "1"]
    monkeypatch.setattr(sys, "argv", words)
    decision.main()
    assert decision.fleet_load.ARRAYS_FROM == 1
    assert "   3 workers  marginal_cost" in capsys.readouterr().out
