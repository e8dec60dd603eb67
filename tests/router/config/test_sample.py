import re
from pathlib import Path

import yaml

from router.config.model import Config, to_builtins
from router.config.sample import sample_yaml
from router.config.schema import settings
from router.settings import load

SAMPLE = Path(__file__).parents[3] / "docs" / "warmroute.sample.yaml"


def uncommented(text: str) -> str:
    return re.sub(r"(?m)^(\s*)#(?=\S| +- | {2,})", r"\1", text)


def test_as_it_is_it_changes_nothing():
    assert load({}, {}, SAMPLE) == Config()


def test_every_setting_is_there_with_its_default_or_an_example():
    shown = yaml.safe_load(uncommented(sample_yaml()))
    defaults = to_builtins(Config())
    for path, _ in settings():
        value, default = shown, defaults
        for key in path:
            value, default = value[key], default[key]
        assert value == (list(default) if isinstance(default, tuple) else default) or not default, path


def test_with_every_comment_removed_it_loads(tmp_path):
    for folder in ("Llama-3.1-8B-Instruct", "my-model"):
        (tmp_path / folder).mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / folder / name).write_text("{}")
    (tmp_path / "my-template.jinja").write_text("")
    text = uncommented(sample_yaml()).replace("/models/", f"{tmp_path}/").replace("/run/warmroute/", f"{tmp_path}/")
    (tmp_path / "full.yaml").write_text(text)
    config = load({}, {}, tmp_path / "full.yaml")
    assert [worker.url for worker in config.workers] == ["http://10.0.0.5:8000", "http://10.0.0.6:8000"]
    assert config.models["my-model"].chat_template == f"{tmp_path}/my-template.jinja"
