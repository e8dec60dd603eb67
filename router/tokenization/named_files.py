"""Read the tokenizers and chat templates that the operator named. A broken one is a mistake in the settings.

Files that the gateway finds by a model's name may be broken without an error: the next source takes over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from backends.vllm.render import ChatRenderer
from backends.vllm.unrenderable import BrokenFile, Unrenderable
from router.config.model import Config
from router.config.problems import Finding
from router.config.tree import Path
from router.tokenization.local.choices import path_of
from router.tokenization.local.local_tokenizer import ModelFiles
from router.tokenization.local.sources import home_files, named_files, places_of
from router.tokenization.settings import missing_files

_FIX = "replace the file with the model's own, as vllm serve reads it"


def broken_files(config: Config) -> Iterator[Finding]:
    """Find named files that cannot be parsed. Each tokenizer is read once, which takes up to a second."""
    home = home_files(config)
    found: dict[Path, ModelFiles] = {}
    if home is not None:
        found[("model_dir",) if path_of(config.tokenizer) is None else ("tokenizer",)] = home
    for name, model in config.models.items():
        files = named_files(model, home)
        if files is not None:
            found["models", name] = files
    yield from _broken(found)


def changed_files(before: Config, after: Config) -> Iterator[Finding]:
    """Find files that are missing or broken, of models with another folder or chat template than before."""
    home = home_files(after)
    for name, model in after.models.items():
        if places_of(model) != places_of(before.models.get(name)):
            files = named_files(model, home)
            missing = list(missing_files(model, ("models", name)))
            yield from missing or _broken({("models", name): files} if files is not None else {})


def _setting(place: Path, files: ModelFiles, reason: str) -> Path:
    if place[0] != "models":
        return place
    if reason.startswith("chat template") and files.chat_template is not None:
        return (*place, "chat_template")
    return (*place, "dir" if files.tokenizer is None else "tokenizer")


def _broken(places: Mapping[Path, ModelFiles]) -> Iterator[Finding]:
    known: set[str] = set()
    for place, files in places.items():
        try:
            ChatRenderer.load(files.folder, files.chat_template, files.tokenizer)
        except BrokenFile as error:
            if error.reason not in known:
                known.add(error.reason)
                yield _setting(place, files, error.reason), f"cannot be parsed: {error.reason}", _FIX
        except Unrenderable:
            pass  # the model has no such files, or vLLM renders it with its own code: a worker tokenises
