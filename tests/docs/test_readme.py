"""The README stays short."""

from pathlib import Path


def test_the_readme_has_at_most_120_lines():
    assert len((Path(__file__).parents[2] / "README.md").read_text().splitlines()) <= 120
