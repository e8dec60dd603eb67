import json
from pathlib import Path

import pytest

from backends.clock.environment import build as builder

RECIPES = Path(builder.__file__).parent


@pytest.fixture
def recipe(tmp_path):
    def write(*steps):
        path = tmp_path / "r.toml"
        tables = [f'[[step]]\nname = "{name}"\nwhy = "because"\ninstall = ["{name}"]\n' for name in steps]
        path.write_text('python = "3.11"\n' + "".join(tables))
        return builder.read(path)

    return write


@pytest.fixture
def ran(monkeypatch):
    """Record the names of commands instead of running them. Commands in `fail` fail."""
    names, fail = [], set()

    def run(command, name):
        names.append(name)
        if name in fail:
            raise builder.BuildFailed(f"{name} failed")
        if name == "the virtual environment":
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin" / "python").touch()

    monkeypatch.setattr(builder, "run", run)
    return names, fail


def test_steps_run_in_order_and_once(recipe, ran, tmp_path):
    names, _ = ran
    for _ in range(2):
        builder.build(tmp_path / "env", recipe("a", "b"))
    assert names == ["the virtual environment", "a", "b"]


def test_a_failed_build_resumes_at_the_failed_step(recipe, ran, tmp_path):
    names, fail = ran
    fail.add("b")
    with pytest.raises(builder.BuildFailed):
        builder.build(tmp_path / "env", recipe("a", "b", "c"))
    fail.clear()
    builder.build(tmp_path / "env", recipe("a", "b", "c"))
    assert names == ["the virtual environment", "a", "b", "b", "c"]


def test_a_changed_step_rebuilds_and_an_added_one_adds(recipe, ran, tmp_path):
    names, _ = ran
    builder.build(tmp_path / "env", recipe("a", "b"))
    builder.build(tmp_path / "env", recipe("a", "b", "c"))
    assert names[3:] == ["c"]
    builder.build(tmp_path / "env", recipe("a", "x", "c"))
    assert names[4:] == ["the virtual environment", "a", "x", "c"]


def test_a_broken_record_of_steps_is_not_trusted(recipe, ran, tmp_path):
    names, _ = ran
    builder.build(tmp_path / "env", recipe("a"))
    (tmp_path / "env" / "steps.json").write_text(json.dumps(["nonsense"]))
    builder.build(tmp_path / "env", recipe("a"))
    assert names == ["the virtual environment", "a"] * 2


def test_an_unknown_recipe_lists_the_recipes(tmp_path, capsys):
    assert builder.main([str(tmp_path / "env"), "--recipe", "vllm-9"]) == 1
    assert "no recipe 'vllm-9'; the recipes are: vllm-0.23, vllm-0.33" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_pin_vllm_and_torch(path):
    recipe = builder.read(path)
    wanted = [argument for step in recipe.steps for argument in step.install]
    assert any(argument.startswith(f"vllm=={path.stem.removeprefix('vllm-')}.") for argument in wanted)
    assert any(argument.startswith("torch==") for argument in wanted)


def test_warmroute_is_installed_again_only_after_a_change(ran, tmp_path, monkeypatch):
    names, _ = ran
    monkeypatch.setattr(builder, "PROJECT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("one")
    (tmp_path / "env").mkdir()
    for text in ("one", "one", "two"):
        (tmp_path / "pyproject.toml").write_text(text)
        builder.install_ourselves(tmp_path / "env")
    assert names == ["warmroute", "warmroute"]
