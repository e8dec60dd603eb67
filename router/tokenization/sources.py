"""The source of token ids for each served model: configured files, files found by its name, a worker, or none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from backends.vllm.unrenderable import Unrenderable
from router.config.model import Config
from router.tokenization.local_tokenizer import LocalModel, ModelFiles

MAX_MODELS = 1_000
"""Number of served model names remembered; further names are not learned."""
MAX_URLS = 8
"""Workers remembered per model for /tokenize."""

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(slots=True)
class TokenizerSource:
    """The facts about one served model. `why` is the reason if there is no local folder.

    `context_tokens` is the smallest context window of its workers, `longest_context_tokens` the largest.
    `trusts_templates`: chat templates in requests are run.
    """

    local: LocalModel | None = None
    loading: Future[LocalModel] | None = None
    root: str | None = None
    urls: list[str] = field(default_factory=list)
    why: str = "no tokenizer files are configured or found"
    context_tokens: int | None = None
    longest_context_tokens: int | None = None
    trusts_templates: bool = False


class ModelSources:
    """Sources by served model name. Configured folders are read at once, found ones on `executor`."""

    def __init__(self, config: Config, executor: Executor, environ: Mapping[str, str] | None = None) -> None:
        self._executor = executor
        self._hub = hub_cache(os.environ if environ is None else environ)
        self._loaded: dict[ModelFiles, LocalModel | str] = {}
        self._sources: dict[str, TokenizerSource] = {}
        self._bases: dict[str, str] = {}
        self._trusts_templates = config.trust_request_chat_template
        self._default = TokenizerSource(trusts_templates=self._trusts_templates)
        self._templates = {name: model.chat_template for name, model in config.models.items()}
        self._configured = frozenset(name for name, model in config.models.items() if model.dir or config.model_dir)
        self._read_config(config)

    def learn(
        self,
        model: str,
        root: str | None,
        tokenize_url: str | None,
        parent: str | None,
        context_tokens: int | None = None,
    ) -> None:
        """Learn from a worker's report about a model that it serves. Cheap if nothing is new."""
        if parent is not None:
            if len(self._bases) < MAX_MODELS:
                self._bases[model] = parent
            return
        source = self._sources.get(model)
        if source is None:
            if len(self._sources) >= MAX_MODELS:
                return
            source = TokenizerSource(
                self._default.local, why=self._default.why, trusts_templates=self._trusts_templates
            )
            self._sources[model] = source
        if context_tokens is not None:
            source.context_tokens = min(context_tokens, source.context_tokens or context_tokens)
            source.longest_context_tokens = max(context_tokens, source.longest_context_tokens or 0)
        if tokenize_url is not None and tokenize_url not in source.urls:
            source.urls = [tokenize_url, *source.urls][:MAX_URLS]
        if source.local is None and source.loading is None and root != source.root and model not in self._configured:
            source.root = root
            self._look_for_files(source, model, root)

    def of(self, model: str | None, adapter: str | None) -> TokenizerSource:
        """Return the source for a request's model. An adapter has the prompts of its base model."""
        name = self._bases.get(adapter) if adapter is not None else model
        if name is not None and name in self._sources:
            return self._settled(self._sources[name])
        if len(self._sources) == 1 and (name is None or self._default.local is None):
            return self._settled(next(iter(self._sources.values())))
        return self._default

    def describe(self, model: str, trouble: Callable[[Sequence[str]], str | None] = lambda urls: None) -> str:
        """Describe the source of the ids of `model`'s prompts. `trouble` returns the reason why workers' /tokenize
        fails.
        """
        source = self.of(model, model if model in self._bases else None)
        if source.local is not None:
            return source.local.describe()
        if source.loading is not None:
            return "reading tokenizer files"
        if not source.urls:
            return f"text only: {source.why}"
        failure = trouble(source.urls)
        return "worker's /tokenize" if failure is None else f"text only: {source.why}, and {failure}"

    def statistics(self) -> dict[str, object]:
        """Return models by source, and the reasons why texts of some are tokenised whole."""
        known = list(self._sources.values())
        return {
            "models_without_memo": {
                name: source.local.memo_off
                for name, source in self._sources.items()
                if source.local is not None and source.local.memo_off is not None
            },
            "models_local": sum(source.local is not None for source in known),
            "models_by_worker": sum(source.local is None and bool(source.urls) for source in known),
            "models_text_only": sum(source.local is None and not source.urls for source in known),
        }

    def _read_config(self, config: Config) -> None:
        tokenizer = Path(config.tokenizer) if config.tokenizer else None
        folder = home_of(config)
        if folder is not None:
            self._default = self._read(ModelFiles(folder, tokenizer))
        for name, model in config.models.items():
            home = Path(model.dir) if model.dir else folder
            if home is None:
                continue
            apart = tokenizer if model.dir is None else None
            self._sources[name] = self._read(ModelFiles(home, apart, model.chat_template))

    def _read(self, files: ModelFiles) -> TokenizerSource:
        found = self._loaded.get(files)
        if found is None:
            try:
                found = LocalModel(files)
            except Unrenderable as error:
                found = error.reason
            self._loaded[files] = found
        source = TokenizerSource(trusts_templates=self._trusts_templates)
        if isinstance(found, str):
            source.why = found
        else:
            source.local = found
        return source

    def _look_for_files(self, source: TokenizerSource, model: str, root: str | None) -> None:
        folder = self._folder(root) or self._folder(model)
        if folder is None:
            return
        files = ModelFiles(folder, chat_template=self._templates.get(model))
        known = self._loaded.get(files)
        if isinstance(known, LocalModel):
            source.local = known
        elif known is not None:
            source.why = known
        else:
            source.loading = self._executor.submit(LocalModel, files)

    def _folder(self, name: str | None) -> Path | None:
        """Return a folder on this machine by path, or by hub name in the Hugging Face cache. Nothing is ever
        downloaded."""
        if not name:
            return None
        path = Path(name)
        if path.is_absolute():
            return path if (path / "tokenizer.json").is_file() else None
        return cached_snapshot(self._hub, name)

    def _settled(self, source: TokenizerSource) -> TokenizerSource:
        """Take over files that were read in the meantime."""
        if source.loading is not None and source.loading.done():
            loading, source.loading = source.loading, None
            try:
                source.local = loading.result()
                self._loaded[source.local.files] = source.local
            except Unrenderable as error:
                source.why = error.reason
            except Exception as error:  # A folder found by name may contain anything; the next source takes over.
                source.why = f"{type(error).__name__}: {error}"
        return source


def home_of(config: Config) -> Path | None:
    """Return the folder of the models that have none of their own in the settings."""
    if config.model_dir is not None or config.tokenizer is None:
        return Path(config.model_dir) if config.model_dir is not None else None
    tokenizer = Path(config.tokenizer)
    return tokenizer if tokenizer.is_dir() else tokenizer.parent


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder in which huggingface_hub keeps models, from its own environment variables."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"])
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expanduser(home)) / "hub"


def cached_snapshot(hub: Path, name: str) -> Path | None:
    """Return the folder of model `name` (org/model) at its main revision in a hub cache, if it has a tokenizer."""
    if not _HUB_NAME.fullmatch(name):
        return None
    home = hub / f"models--{name.replace('/', '--')}"
    try:
        revision = (home / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = home / "snapshots" / revision
    return folder if revision and "/" not in revision and (folder / "tokenizer.json").is_file() else None
