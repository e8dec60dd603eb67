import json

import yaml

from router.config.model import Config, to_builtins
from router.config.sample import sample_yaml


def test_what_is_in_effect_as_yaml_and_json(inside):
    ran = inside("config", "--port", "9000", env={"WARMROUTE_WORKERS": "a:1,b:2"})
    shown = yaml.safe_load(ran.stdout)
    assert (shown["port"], [worker["url"] for worker in shown["workers"]]) == (9000, ["a:1", "b:2"])
    assert shown["timeouts"] == to_builtins(Config())["timeouts"]
    again = inside("config", "--json", "--port", "9000", env={"WARMROUTE_WORKERS": "a:1,b:2"})
    assert json.loads(again.stdout) == shown


def test_its_output_is_a_settings_file(inside, tmp_path):
    (tmp_path / "all.yaml").write_text(inside("config", "--access-log", "--policy", "lpwl").stdout)
    assert inside("config", "--config", "all.yaml").stdout == (tmp_path / "all.yaml").read_text()


def test_origins(inside, tmp_path):
    (tmp_path / "w.yaml").write_text("host: h\ntimeouts:\n  total_s: 50\nport: 7\nworkers: [a:1]\n")
    ran = inside("config", "--config", "w.yaml", "--origins", "--port", "8", env={"WARMROUTE_HOST": "i"})
    assert ran.stdout.splitlines() == [
        'host: "i"  # WARMROUTE_HOST',
        "port: 8  # --port",
        'workers: [{"url": "a:1", "kv_events": null}]  # w.yaml:5',
        "timeouts.total_s: 50.0  # w.yaml:3",
    ]
    assert inside("config", "--origins").stdout == "every setting has its default\n"


def test_sample(inside):
    assert inside("config", "--sample", "yaml").stdout == sample_yaml()
