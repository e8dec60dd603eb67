"""Build a virtual environment from a recipe, step by step. A build can be resumed, and no step runs twice.

It runs as a file, with the standard library alone, before anything is installed: `python3.11
backends/clock/environment/build.py .venv-vllm --recipe vllm-0.33`.

A record names the finished steps. If one of them changed, the environment is rebuilt.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class BuildStep:
    name: str
    why: str
    install: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    python: str
    steps: tuple[BuildStep, ...]


class BuildFailed(Exception):
    """A step failed; the message names the step and the fix."""


def read(path: Path) -> Recipe:
    """Read the recipe in a TOML file: `python` and a list of `step` tables (name, why, install).

    Raises:
        BuildFailed: there is no such file; the message lists the recipes.
    """
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.toml")))
        raise BuildFailed(f"no recipe {path.stem!r}; the recipes are: {known}")
    table = tomllib.loads(path.read_text())
    steps = tuple(BuildStep(step["name"], step["why"], tuple(step["install"])) for step in table["step"])
    return Recipe(str(table["python"]), steps)


def build(environment: Path, recipe: Recipe) -> None:
    """Bring the environment up to its recipe. A record has the finished steps, and the next run continues after them.

    Raises:
        BuildFailed: a step failed.
    """
    record = environment / "steps.json"
    wanted = [[recipe.python, step.name, *step.install] for step in recipe.steps]
    finished = json.loads(record.read_text()) if record.is_file() else []
    if finished != wanted[: len(finished)] or not (environment / "bin" / "python").exists():
        shutil.rmtree(environment, ignore_errors=True)
        finished = []
        say(f"creating {environment.name} with python {sys.version_info.major}.{sys.version_info.minor}")
        run([sys.executable, "-m", "venv", str(environment)], "the virtual environment")
    for step in recipe.steps[len(finished) :]:
        started = time.monotonic()
        finished = wanted[: len(finished) + 1]
        said = f"step {len(finished)} of {len(recipe.steps)}"
        say(f"{said}: {step.name} ({step.why})")
        install(environment, step.install, step.name)
        record.write_text(json.dumps(finished))
        say(f"{said}: done in {time.monotonic() - started:.0f} s")


def install_ourselves(environment: Path) -> None:
    """Install Warmroute, so that vLLM finds the plug-in's entry point; again if pyproject changed."""
    digest = hashlib.sha256((PROJECT / "pyproject.toml").read_bytes()).hexdigest()
    record = environment / "warmroute.sha256"
    if record.is_file() and record.read_text() == digest:
        return
    say("installing warmroute into it")
    install(environment, ("--editable", str(PROJECT)), "warmroute")
    record.write_text(digest)


def install(environment: Path, arguments: Sequence[str], name: str) -> None:
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *arguments], name)


def run(command: Sequence[str], name: str) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise BuildFailed(f"{name} failed; its message is above. Run the same command again to continue")


def say(line: str) -> None:
    print(f"vllm-env: {line}", flush=True)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit status 0 if the environment matches the recipe, else 1 with a message."""
    parser = argparse.ArgumentParser(description="Build an environment in which vLLM runs without a GPU.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--recipe", default="vllm-0.33", help="name of a .toml file beside this one")
    chosen = parser.parse_args(arguments)
    try:
        recipe = read(Path(__file__).with_name(f"{chosen.recipe}.toml"))
        have = f"{sys.version_info.major}.{sys.version_info.minor}"
        if have != recipe.python:
            raise BuildFailed(f"this recipe was tested with python {recipe.python}; this is {have}")
        build(chosen.directory.resolve(), recipe)
        install_ourselves(chosen.directory.resolve())
    except BuildFailed as failure:
        print(f"vllm-env: {failure}", file=sys.stderr)  # noqa: T201
        return 1
    say(f"ready: {chosen.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
