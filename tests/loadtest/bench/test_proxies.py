import json

import pytest
from rich.console import Console

from loadtest.bench.measures.catalogue import chosen
from loadtest.bench.measures.sample import Setting
from loadtest.bench.proxies import against, warmroute
from loadtest.bench.proxies.entrant import Entrant, NotInstalled, Place
from loadtest.bench.proxies.installed import installed
from loadtest.bench.results import Results, Row, this_machine
from loadtest.bench.rounds import Bench
from loadtest.compare.contenders import Contender
from loadtest.fleet.process import StartError
from router.limits.caller import Charge
from router.limits.registry import RateLimits
from router.security.keys import ApiKeys
from router.settings import load


def test_a_program_that_is_not_installed_is_missing_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    found, rows = against.entrants(["nginx", f"old={tmp_path}"], False, tmp_path)
    assert [one.name for one in found] == ["warmroute"]
    assert [row.name for row in rows] == ["warmroute", "nginx", "warmroute old"]
    assert ["apt install" in (row.missing or "") for row in rows] == [False, True, False]
    assert "bin/warmroute of the environment does not run" in rows[-1].missing


def test_a_compiled_environment_runs_its_own_command(tmp_path):
    program = tmp_path / "bin" / "warmroute"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho warmroute 9.9\n")
    program.chmod(0o755)
    found = warmroute.other("warmroute compiled", tmp_path, False)
    assert (found.name, found.version) == ("warmroute compiled", "9.9")


def test_a_program_from_pypi_comes_from_its_environment_where_path_has_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NotInstalled, match="make peers-env"):
        installed("envoy", tmp_path)
    program = tmp_path / "bin" / "envoy"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho envoy  version: 9f/9.8.7/Clean\n")
    program.chmod(0o755)
    found = installed("envoy", tmp_path)
    assert (found.name, found.version) == ("envoy", "9.8.7")


def test_the_programs_are_ours_and_those_that_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Contender, "version", lambda self, environment: "1.0" if self.router == "smg" else None)
    names = ["direct", "defaults", f"old={tmp_path}", "smg:round_robin", "sglang-router"]
    found, rows = against.entrants(names, True, tmp_path)
    known = ["warmroute", "direct", "warmroute defaults", "warmroute old", "smg", "sglang-router"]
    assert [row.name for row in rows] == known
    assert [one.name for one in found] == ["warmroute", "direct", "warmroute defaults", "smg"]
    assert (found[-1].setup, rows[-1].missing) == ("round_robin", "not installed (make peers-env)")
    assert ["API keys" in one.setup for one in (found[0], found[2])] == [True, False]
    assert against.without_path(names[2]) == "old=DIR"


def test_the_settings_with_all_features_are_valid_and_refuse_nothing(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps(warmroute.everything(Place((8_100,), tmp_path))))
    config = load({}, {}, file)
    name, key = warmroute.KEY_HEADER["authorization"].split()
    assert (name, ApiKeys(config.auth).name_of(key.encode())) == ("Bearer", "bench")
    limits = RateLimits(config.limits).of("bench", "bench")
    assert all(isinstance(limits.admit(10_000, 5.0), Charge) for _ in range(1_000))
    assert limits.lines().count(b"x-ratelimit-") == 6


def test_a_proxy_that_does_not_start_is_struck_and_the_others_go_on(tmp_path):
    def start(place):
        raise StartError("it ended with code 3:\nsome line\nthe port is taken")

    rows = [Row("broken")]
    results = Results("a command", "2026-11-21", this_machine(), 1, 0.2, 2, 2, rows, 0.0)
    bench = Bench(Console(), Setting(0.2, 2, 2), chosen(["request-2k"]), results)
    bench.round(1, [Entrant("broken", "1", "", start)], tmp_path)
    assert rows[0].missing == "did not start: it ended with code 3: the port is taken"
    assert results.complaints()
