"""The bench of the console measures what it says."""

import re

import pytest

from loadtest.bench.parts.console import PANELS, main

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_each_panel_is_watched_and_has_a_cost(capsys):
    main(["--workers", "8", "--rate", "20", "--pairs", "1", "--window-s", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PANELS)
    read = {line.split()[0]: float(re.search(r"([\d.]+) kB/s", line)[1]) for line in lines}
    assert read["decisions"] > 0 and read["prefixes"] == 0
    assert all(re.search(r"-?\d+\.\d\d % of a core \(", line) for line in lines)
