import json
from collections import Counter
from random import Random

import pytest

from loadtest.__main__ import main
from loadtest.arguments import size_bytes
from loadtest.fleet.memory_group import MemoryGroup, NoMemoryGroup
from loadtest.soak.attack.attacker import ATTACKS, Attack, Attacker
from tests.support.commands import run_here


@pytest.mark.parametrize(("text", "size"), [("1GiB", 2**30), ("512MiB", 2**29), ("3MB", 3_000_000), ("77", 77)])
def test_sizes_have_units(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["0", "1 GiB", "1T", "", "-1"])
def test_a_wrong_size_is_refused_by_name(text):
    with pytest.raises(Exception, match="is not a size"):
        size_bytes(text)


def test_equal_seeds_draw_equal_attacks(monkeypatch):
    for name in ATTACKS:
        monkeypatch.setitem(ATTACKS, name, lambda attacker: {})
    one, two = (Attacker("127.0.0.1:1", "m", Random(5)) for _ in range(2))
    drawn = [one.next()[0] for _ in range(60)]
    assert drawn == [two.next()[0] for _ in range(60)]
    assert set(drawn) > {"flood", "body", "eight_bodies"}


def test_the_attackers_output_is_counted():
    attack = Attack("127.0.0.1:1", 0)
    for line in ('["body", {"400": 3, "503": 1}]\n', '["body", {"400": 2}]\n', '["idle", {"held": 200}]\n', "else\n"):
        attack._read(line)
    assert attack.counts == Counter({"body": 2, "idle": 1})
    assert attack.requests == Counter({"400": 5, "503": 1, "held": 200})


def test_an_attacker_that_ends_early_fails_the_soak():
    with Attack("no address", 0) as attack:
        attack._process.wait(30)
    assert "ended early" in attack.troubles[0]


def test_without_a_cgroup_the_command_says_so(monkeypatch, capsys):
    def none(limit_bytes):
        raise NoMemoryGroup("no memory cgroup can be made: read-only")

    monkeypatch.setattr("loadtest.soak.fleet.MemoryGroup", none)
    code, printed = run_here(capsys, main, ["soak", "--workers", "1", "--memory-limit", "1GiB"])
    assert code == 1 and "no memory cgroup can be made: read-only" in printed


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_minute_beside_an_attacker_under_a_limit_fails_no_request_of_others(tmp_path, capsys):
    limit = ["--memory-limit", "1GiB"]
    try:
        MemoryGroup(2**30).remove()
    except NoMemoryGroup:
        limit = []
    flags = ["--minutes", "1", "--calibrate-s", "5", "--workers", "2", "--scenario", "attack"]
    flags += [*limit, "--json", tmp_path / "soak.json", "--logs", tmp_path]
    code, printed = run_here(capsys, main, ["soak", *flags])
    report = json.loads((tmp_path / "soak.json").read_text())
    assert code == 0, (report["failures"], report["unexplained"], printed[-3_000:])
    assert report["failed_requests"] == 0 and report["outcomes"]["complete"] > 100
    assert report["faults"] == {"kill": 0, "pause": 0, "lost_events": 0, "drain": 0}
    assert sum(report["attacks"].values()) > 5 and report["attacker_requests"]
    assert report["peak_rss_mb"] < (report["memory_limit_mb"] or 1_100)
