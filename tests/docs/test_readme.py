"""The README stays short."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def prose() -> str:
    """The text as shown, without code and the targets of links."""
    text = re.sub(r"```.*?```", "", README.read_text(), flags=re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def test_the_readme_has_at_most_120_lines():
    assert len(README.read_text().splitlines()) <= 120


def test_the_readme_has_at_most_15_numbers():
    numbers = re.findall(r"(?<![\w.])\d[\d,.]*", prose())
    assert len(numbers) <= 15, numbers


def test_each_reason_has_at_most_15_words():
    reasons = re.findall(r"^- (.+)$", README.read_text().split("## Why")[1].split("\n## ")[0], re.MULTILINE)
    assert len(reasons) == 5
    assert [reason for reason in reasons if len(reason.split()) > 15] == []
