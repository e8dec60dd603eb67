from rich.console import Console

from loadtest.bench.machine import Machine
from loadtest.replicas.cases import Case, Played, Share
from loadtest.replicas.exchange import Cost
from loadtest.replicas.faults import Healing
from loadtest.replicas.findings import Findings, Taken, read, write
from loadtest.replicas.page import page, show

TAKEN = Taken(
    "python -m loadtest replicas --part live", "2026-11-25", Machine("a CPU", 2, 8.0, "Linux 6", "3.11"), 0.75
)
LIVE = [
    Played(Case(1, True, False), (Share(0.80, 1.2, 20.0, 100), Share(0.82, 1.3, 22.0, 100))),
    Played(Case(2, True, False), (Share(0.70, 1.2, 20.0, 100), Share(0.72, 1.3, 22.0, 100, failed=2))),
]
FINDINGS = Findings(
    taken=dict.fromkeys(("live", "sim", "exchange", "faults"), TAKEN),
    live=LIVE,
    sim={"long-tail": LIVE},
    exchange=[Cost(0, 0.05, (0.05,), (0.01,), 0.5, 2_000, 400, 0, 0, 1.0)],
    faults=[Healing("stopped for 3 s", 100, (), 2, 0.5, 1.0)],
)


def test_the_page_has_commands_missed_bars_and_every_table():
    text = page(FINDINGS)
    assert "`python -m loadtest replicas --part live` | 2026-11-25 | 75% |" in text
    assert "a CPU, 2 cores, 8 GiB, Linux 6, Python 3.11" in text
    assert "- live: 2 gateways: cached share lost, exact views without Redis is 0.100, and the bar 0.02" in text
    assert (
        "| 2 | exact | no | 0.710 (0.700 to 0.720) | 1.25 (1.20 to 1.30) | 21 (20 to 22) | 2 of 100 requests | 2 |"
        in text
    )
    assert "| stopped for 3 s | 100 | 0 | 2 | 0.5 | 1.0 |" in text
    assert "| Redis, CPU of a core | 5.0% |" in text
    for title in ("## The bars", "## Real processes", "## Virtual time", "## The exchange alone", "## Redis cut"):
        assert text.count(title) == 1


def test_a_page_without_missed_bars_says_so():
    assert "**All bars are met.**" in page(Findings(taken={"faults": TAKEN}, faults=FINDINGS.faults))


def test_the_console_shows_the_bars():
    console = Console(width=170, record=True, quiet=False)
    show(console, FINDINGS)
    assert "cached share lost, exact views without Redis" in console.export_text()


def test_findings_survive_the_file(tmp_path):
    assert read(tmp_path) == Findings()
    write(tmp_path / "new", FINDINGS)
    assert read(tmp_path / "new") == FINDINGS
