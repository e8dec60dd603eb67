import re

import msgspec

from loadtest.tournament.page import page


def section(text, title):
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text):
    """The cells of a table's rows, heads left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_losing_cells_are_listed_with_their_figures(scores):
    text = section(page(scores, "tournament"), "Where `ours` loses")
    assert "Of 18 matches `ours` is first or not inferior to the first in 16." in text
    assert "Of the other 2, 1 lie below load 1; in 1 its mean is more than 5 % worse than the best." in text
    assert rows(text) == [
        ["first calls", "1.05", "TTFT mean, ms", "1,100", "`a`", "1,000", "**10.0 ±0.0 %**", "worse"],
        ["second calls", "0.9", "TTFT p99, ms", "416", "`b`", "400", "4.0 ±0.0 %", "worse"],
    ]


def test_the_overall_table_is_by_goodput(scores):
    found = rows(section(page(scores, "tournament"), "Overall"))
    assert [row[0] for row in found] == ["**`ours`**", "`a`", "`b`"]
    assert found[0][1:] == [
        "0.711 ±0.000 *",
        "0.938 ±0.000 *",
        "1.02",
        "1.01",
        "11 of 12",
        "+10.0%: first calls, load 1.05, TTFT mean, ms",
    ]
    assert found[1][1].endswith(" -")
    text = section(page(scores, "tournament"), "Overall")
    assert "First in goodput: `ours`; next: `a`, 9.5 ±0.0 % behind." in text, "0.6433 against 0.7110"
    assert "First in sustained load: `ours`; next: `a`, 15.9 ±0.0 % behind." in text, "0.7889 against 0.9375"


def test_each_cell_ranks_the_rules_by_each_measure(scores):
    text = page(scores, "tournament").split("### first calls, load 0.9\n")[1].split("\n#")[0]
    assert rows(text) == [
        ["1", "**`ours`** 200 ±0 *", "**`ours`** 400 ±0 *", "**`ours`** 6.264 ±0.000 *"],
        ["2", "`a` 300 ±0 -", "`b` 800 ±0 -", "`a` 5.220 ±0.000 -"],
        ["3", "`b` 400 ±0 -", "`a` 900 ±0 -", "`b` 4.567 ±0.000 -"],
    ]


def test_how_it_was_made_is_said(scores):
    text = page(scores, "tournament")
    assert "Made by `python -m loadtest tournament`; do not edit. 3 rules, 2 workload(s), loads 0.5, 0.9, 1.05" in text
    assert "windows of 1200 s of which the first 240 s warm caches" in text
    assert "**Left out:** some trace: --traces is not given." in text
    assert "Nothing here is to be published" not in text
    quick = page(msgspec.structs.replace(scores, quick=True), "tournament")
    assert "Nothing here is to be published" in quick
    found = rows(section(text, "What was played"))
    assert found[0][2:7] == ["4 x llama-3.1-8b-h100", "2000:100 ms", "64 tokens", "7.25 calls/s", "-"]
    assert found[1][6] == "3.50 calls/s"


def test_tables_are_whole(scores):
    for table in re.findall(r"(?:^\|.*\n)+", page(scores, "tournament"), re.MULTILINE):
        assert len({line.count(" | ") for line in table.splitlines() if not line.startswith("|---")}) == 1, table
