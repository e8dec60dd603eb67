"""Check the settings of tokenizers and chat templates: the files must exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath

from router.config.model import Config, ModelConfig
from router.config.problems import Finding
from router.config.tree import Path
from router.tokenization.local.choices import CHOICES, WORKER, path_of


def check(config: Config) -> Iterator[Finding]:
    yield from _tokenizer(config.tokenizer, ())
    if config.model_dir is not None:
        yield from _unused(config.tokenizer, ("model_dir",))
        yield from _model_dir(config.model_dir, ("model_dir",), path_of(config.tokenizer) is not None)
    for name, model in config.models.items():
        yield from missing_files(model, ("models", name))


def _tokenizer(tokenizer: str | None, path: Path) -> Iterator[Finding]:
    place = path_of(tokenizer)
    if place is not None and not _is_tokenizer(place):
        fix = f"write its path or that of its folder, or {', '.join(CHOICES)}"
        yield (*path, "tokenizer"), f"no tokenizer.json at {tokenizer!r}", fix


def _unused(tokenizer: str | None, path: Path) -> Iterator[Finding]:
    if tokenizer == WORKER:
        yield path, f"{path[-1]} is set, and tokenizer is worker, which uses no files", "remove one of the two"


def _is_tokenizer(path: FilePath) -> bool:
    return path.is_file() or (path / "tokenizer.json").is_file()


def missing_files(model: ModelConfig, path: Path) -> Iterator[Finding]:
    yield from _tokenizer(model.tokenizer, path)
    if model.dir is not None:
        yield from _unused(model.tokenizer, (*path, "dir"))
        yield from _model_dir(model.dir, (*path, "dir"), path_of(model.tokenizer) is not None)
    if model.chat_template is not None and not FilePath(model.chat_template).is_file():
        yield (*path, "chat_template"), f"no file {model.chat_template!r}", "write the path of a Jinja chat template"


def _model_dir(folder: str, path: Path, tokenizer_elsewhere: bool) -> Iterator[Finding]:
    if not FilePath(folder).is_dir():
        yield path, f"no folder {folder!r}", "write a folder with tokenizer.json and tokenizer_config.json"
        return
    needed = ["tokenizer_config.json"] if tokenizer_elsewhere else ["tokenizer.json", "tokenizer_config.json"]
    if missing := [name for name in needed if not (FilePath(folder) / name).is_file()]:
        yield path, f"{folder!r} has no {' and no '.join(missing)}", "write the folder that vllm serves the model from"
