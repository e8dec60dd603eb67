import sys

from loadtest.bench.parts import decision, residency


def test_a_decision_has_its_bar_beside_the_time_of_each_size(monkeypatch, capsys):
    words = ["decision", "--workers", "2", "8", "--rounds", "3", "--tokens", "512"]
    monkeypatch.setattr(sys, "argv", words)
    decision.main()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("   2 workers  p50") and "bar" not in first
    assert second.startswith("   8 workers  p50") and second.endswith("bar     90 us")


def test_the_index_is_measured_with_its_bars(monkeypatch, capsys):
    monkeypatch.setattr(residency, "MATCH_BLOCKS", 128)
    monkeypatch.setattr(sys, "argv", ["residency", "--blocks", "2560", "--ingest-blocks", "12800"])
    residency.main()
    printed = {
        line.split()[0]: float(line.split()[1].replace(",", "")) for line in capsys.readouterr().out.splitlines()
    }
    assert set(residency.BARS) < set(printed) and all(value > 0 for value in printed.values())
