from collections.abc import Callable
from pathlib import Path

import pytest

from router.config.model import Config
from router.config.problems import ConfigError, Problem
from router.settings import load


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a settings file into the current folder and give its relative path."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        Path(name).write_text(text)
        return Path(name)

    return write


@pytest.fixture
def problems() -> Callable[..., tuple[Problem, ...]]:
    def problems(values=None, env=None, file=None) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as raised:
            load(values or {}, env or {}, file)
        return raised.value.problems

    return problems


@pytest.fixture
def defaults() -> Config:
    return Config()
