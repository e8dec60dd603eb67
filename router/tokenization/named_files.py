"""Read the tokenizers and chat templates that the operator named. A broken one is a mistake in the settings.

Files that the gateway finds by a model's name may be broken without an error: the next source takes over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath

from backends.vllm.render import ChatRenderer
from backends.vllm.unrenderable import BrokenFile, Unrenderable
from router.config.findings import Finding
from router.config.model import Config
from router.config.tree import Path
from router.tokenization.local_tokenizer import ModelFiles
from router.tokenization.sources import home_of

_FIX = "replace the file with the model's own, as vllm serve reads it"


def broken_files(config: Config) -> Iterator[Finding]:
    """Find named files that cannot be parsed. Each tokenizer is read once, which takes up to a second."""
    known: set[str] = set()
    for folder, template, files in _named(config):
        try:
            ChatRenderer.load(files.folder, files.chat_template, files.tokenizer)
        except BrokenFile as error:
            if error.reason not in known:
                known.add(error.reason)
                in_template = error.reason.startswith("chat template") and files.chat_template is not None
                yield (template if in_template else folder), f"cannot be parsed: {error.reason}", _FIX
        except Unrenderable:
            pass  # the model has no such files, or vLLM renders it with its own code: a worker tokenises


def _named(config: Config) -> Iterator[tuple[Path, Path, ModelFiles]]:
    """Return the named files, with the settings that name folder and chat template."""
    tokenizer = FilePath(config.tokenizer) if config.tokenizer is not None else None
    home = home_of(config)
    if home is not None:
        yield ("model_dir",) if tokenizer is None else ("tokenizer",), (), ModelFiles(home, tokenizer)
    for name, model in config.models.items():
        folder = FilePath(model.dir) if model.dir is not None else home
        if folder is not None:
            apart = tokenizer if model.dir is None else None
            files = ModelFiles(folder, apart, model.chat_template)
            yield ("models", name, "dir"), ("models", name, "chat_template"), files
