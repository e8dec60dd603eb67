import json

import yaml

from router.config.memory import MemoryLimit
from router.config.model import Config, to_builtins
from router.config.sample import sample_yaml


def test_effective_settings_are_printed_as_yaml_and_json(inside):
    ran = inside("config", "--port", "9000", env={"WARMROUTE_WORKERS": "a:1,b:2"})
    shown = yaml.safe_load(ran.stdout)
    assert (shown["port"], [worker["url"] for worker in shown["workers"]]) == (9000, ["a:1", "b:2"])
    assert shown["timeouts"] == to_builtins(Config())["timeouts"]
    again = inside("config", "--json", "--port", "9000", env={"WARMROUTE_WORKERS": "a:1,b:2"})
    assert json.loads(again.stdout) == shown


def test_byte_budgets_are_the_numbers_in_effect(inside, monkeypatch):
    monkeypatch.setattr("router.cli.config.memory_limit", lambda: MemoryLimit(1 << 30, "cgroup v2"))
    limits = yaml.safe_load(inside("config").stdout)["limits"]
    assert limits["max_buffered_body_bytes"] == 119_304_646
    assert yaml.safe_load(inside("config", "--set", "limits.max_buffered_body_bytes=100000000").stdout)["limits"] == {
        **limits,
        "max_buffered_body_bytes": 100_000_000,
    }


def test_the_output_loads_as_a_settings_file(inside, tmp_path):
    (tmp_path / "all.yaml").write_text(inside("config", "--access-log", "--policy", "lpwl").stdout)
    assert inside("config", "--config", "all.yaml").stdout == (tmp_path / "all.yaml").read_text()


WORKERS = (
    '[{"url": "a:1", "name": null, "weight": 1.0, "role": "mixed", "kv_events": null, "api_key": null, "labels": {}, '
    '"maintenance": false, "migrate_after_s": null, "host": "worker"}]'
)


def test_origins_name_file_line_variable_or_option(inside, tmp_path):
    (tmp_path / "w.yaml").write_text(
        "host: h\n\n# the fleet\n\nworkers:\n  - url: a:1\npolicy:\n  params: {}\ntimeouts:\n  total_s: 50\n"
    )
    options = ("--set", "port=9000", "--set", "timeouts.connect_s=1", "--admin-port", "8")
    ran = inside("config", "--config", "w.yaml", "--origins", *options, env={"WARMROUTE_HOST": "i"})
    assert ran.stdout.splitlines() == [
        'host: "i"  # WARMROUTE_HOST',
        "port: 9000  # --set port",
        "admin_port: 8  # --admin-port",
        f"workers: {WORKERS}  # w.yaml:5:1",
        "policy.params: {}  # w.yaml:8:3",
        "timeouts.connect_s: 1.0  # --set timeouts.connect_s",
        "timeouts.total_s: 50.0  # w.yaml:10:3",
    ]
    emptied = inside("config", "--config", "w.yaml", "--origins", "--set", "workers=[]")
    assert "workers: []  # --set workers" in emptied.stdout.splitlines()
    assert inside("config", "--origins").stdout == "every setting has its default\n"


def test_keys_are_not_shown(inside):
    env = {"WARMROUTE_WORKERS": '[{"url": "a:1", "api_key": "SECRET"}]'}
    for form in ([], ["--json"], ["--origins"]):
        shown = inside("config", *form, env=env).stdout
        assert "SECRET" not in shown
        assert "api_key" in shown and "***" in shown


def test_a_struck_out_key_is_no_key(inside, tmp_path):
    shown = inside("config", env={"WARMROUTE_WORKERS": '[{"url": "a:1", "api_key": "SECRET"}]'}).stdout
    (tmp_path / "w.yaml").write_text(shown)
    ran = inside("config", "--config", "w.yaml")
    assert ran.returncode == 2
    assert "api_key is ***, which stands for a key that is not shown; write the key" in ran.stderr


def test_sample_prints_the_sample_file(inside):
    assert inside("config", "--sample", "yaml").stdout == sample_yaml()
