"""The source of token ids for each served model: configured files, files found by its name on this machine or on the
Hugging Face hub, a worker, or none.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from backends.vllm.unrenderable import Unrenderable
from router.config.model import Config, ModelConfig
from router.config.on_request import OnRequest
from router.hub.cache import cached_snapshot, hub_cache
from router.hub.fetcher import Fetched, HubFetcher, is_hub_name
from router.tokenization.local.choices import AUTO, CHOICES, WORKER, path_of
from router.tokenization.local.local_tokenizer import LocalModel, ModelFiles

MAX_MODELS = 1_000
"""Number of served model names remembered; further names are not learned."""
MAX_URLS = 8
"""Workers remembered per model for /tokenize."""


ReadFiles: TypeAlias = Mapping[ModelFiles, LocalModel | str]
"""Model folders, or the reasons why they cannot be used."""


class Way(StrEnum):
    """How the prompts of a model become token ids now. A worker's /tokenize is the slow way."""

    LOCAL = "local"
    READING = "reading"
    WORKER = "worker"
    TEXT = "text"


@dataclass(slots=True)
class TokenizerSource:
    """The facts about one served model. `why` is the reason if there is no local folder.

    `context_tokens` is the smallest context window of its workers, `longest_context_tokens` the largest.
    `trusts_templates`: chat templates in requests are run. `reported`: a worker serves the model.

    While files are `fetching`, the other sources serve. `hub` says how that went, if it did not bring files. They are
    looked for again at `look_again_s`.
    """

    local: LocalModel | None = None
    loading: Future[LocalModel] | None = None
    root: str | None = None
    urls: list[str] = field(default_factory=list)
    why: str = "no tokenizer files are configured or found"
    context_tokens: int | None = None
    longest_context_tokens: int | None = None
    trusts_templates: bool = False
    reported: bool = False
    fetching: Future[Fetched] | None = None
    chat_template: str | None = None
    hub: str = ""
    fetched: bool = False
    look_again_s: float = math.inf


class ModelSources:
    """Sources by served model name. Configured folders are read at once, found ones on `executor`."""

    def __init__(
        self,
        config: Config,
        executor: Executor,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._clock = clock
        environ = os.environ if environ is None else environ
        self._hub = hub_cache(environ)
        self._fetcher = HubFetcher(environ)
        self._choice = config.tokenizer if config.tokenizer in CHOICES else AUTO
        self._loaded: dict[ModelFiles, LocalModel | str] = {}
        self._sources: dict[str, TokenizerSource] = {}
        self._bases: dict[str, str] = {}
        self._trusts_templates = config.trust_request_chat_template
        self._home = home_files(config)
        self._default = self._read(self._home) if self._home is not None else self._source()
        self._models: Mapping[str, ModelConfig] = config.models
        self._on_request = OnRequest(config.models)
        for name, model in config.models.items():
            files = named_files(model, self._home)
            if files is not None:
                self._sources[name] = self._read(files)

    def learn(
        self,
        model: str,
        root: str | None,
        tokenize_url: str | None,
        parent: str | None = None,
        context_tokens: int | None = None,
    ) -> None:
        """Learn that a worker serves `model` from `root` and tokenises at `tokenize_url`. Cheap if nothing is new.

        `parent` is an adapter's base model, `context_tokens` the part of the model's context window that the worker
        serves.
        """
        if parent is not None:
            if len(self._bases) < MAX_MODELS:
                self._bases[model] = parent
            return
        source = self._sources.get(model)
        if source is None:
            if len(self._sources) >= MAX_MODELS:
                return
            source = self._sources[model] = self._source()
            if self._chosen(model) != WORKER:
                source.local, source.why = self._default.local, self._default.why
        source.reported = True
        if context_tokens is not None:
            source.context_tokens = min(context_tokens, source.context_tokens or context_tokens)
            source.longest_context_tokens = max(context_tokens, source.longest_context_tokens or 0)
        if tokenize_url is not None and tokenize_url not in source.urls:
            source.urls = [tokenize_url, *source.urls][:MAX_URLS]
        new, source.root = root != source.root, root
        if source.local is not None or source.loading is not None or self._is_named(model):
            return
        if source.fetching is not None:
            self._settled(source)
        elif new or self._clock() >= source.look_again_s:
            self._look_for_files(source, model, root)

    def of(self, model: str | None, adapter: str | None) -> TokenizerSource:
        """Return the source for a request's model. An adapter has the prompts of its base model."""
        name = model if adapter is None else self._bases.get(adapter) or self._on_request.base(adapter)
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
            fetched = f", fetched from {self._fetcher.endpoint}" if source.fetched else ""
            return source.local.describe() + fetched
        if source.loading is not None:
            return "reading tokenizer files"
        why = source.hub or source.why
        failure = trouble(source.urls) if source.urls else None
        if source.urls and failure is None:
            return f"worker's /tokenize ({source.hub})" if source.hub else "worker's /tokenize"
        return f"text only: {why}" if failure is None else f"text only: {why}, and {failure}"

    def way(self, model: str) -> Way:
        source = self.of(model, model if model in self._bases else None)
        if source.local is not None:
            return Way.LOCAL
        if source.loading is not None:
            return Way.READING
        return Way.WORKER if source.urls else Way.TEXT

    def chosen(self, model: str) -> str:
        """Return the choice of the settings for a model: one of `CHOICES`, or a path."""
        return self._chosen(self._bases.get(model, model))

    async def files_read(self) -> None:
        """Wait until the tokenizer files of all known models are fetched and read, or cannot be."""
        while pending := self._pending():
            await ended(pending)

    def _pending(self) -> list[Future[Fetched] | Future[LocalModel]]:
        for source in self._sources.values():
            self._settled(source)
        found = [future for one in self._sources.values() for future in (one.fetching, one.loading)]
        return [future for future in found if future is not None]

    def close(self) -> None:
        self._fetcher.close()

    def statistics(self) -> dict[str, object]:
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

    async def read(self, models: Mapping[str, ModelConfig]) -> ReadFiles:
        """Read the files that `use` of other settings of models needs, in a thread: up to a second each."""
        loop = asyncio.get_running_loop()
        unread = {files for files in self._changed(models).values() if files is not None} - self._loaded.keys()
        return {files: await loop.run_in_executor(self._executor, read_files, files) for files in unread}

    def use(self, models: Mapping[str, ModelConfig], read: ReadFiles) -> frozenset[str]:
        """Use other folders and chat templates from the next prompt on. Return the models whose prompts may get other
        ids. A file that `read` lacks is read now.
        """
        changed = self._changed(models)
        self._loaded.update(read)
        self._models, self._on_request = models, OnRequest(models)
        for name, files in changed.items():
            self._place(name, files)
        used = [source.local for source in (self._default, *self._sources.values()) if source.local is not None]
        self._loaded = {local.files: local for local in used}
        return frozenset(changed)

    def _changed(self, models: Mapping[str, ModelConfig]) -> dict[str, ModelFiles | None]:
        """Return the models with another folder or chat template, and their files then."""
        before = self._models
        names = [name for name in {**before, **models} if places_of(before.get(name)) != places_of(models.get(name))]
        return {name: self._files_of(name, models.get(name)) for name in names}

    def _files_of(self, name: str, model: ModelConfig | None) -> ModelFiles | None:
        """Return the files that the settings name, or else files on this machine that the worker's report leads to."""
        files = named_files(model, self._home) if model is not None else None
        source = self._sources.get(name)
        chosen = (model.tokenizer if model is not None else None) or self._choice
        if files is not None or self._home is not None or source is None or not source.reported or chosen == WORKER:
            return files
        folder = self._folder(source.root) or self._folder(name)
        return None if folder is None else ModelFiles(folder, chat_template=model.chat_template if model else None)

    def _place(self, name: str, files: ModelFiles | None) -> None:
        source = self._sources.get(name)
        if files is None and (source is None or not source.reported):
            self._sources.pop(name, None)
            return
        if source is None:
            source = self._sources[name] = self._source()
        if files is not None:
            found = self._read(files)
        else:
            found = self._source() if self._chosen(name) == WORKER else self._default
        source.local, source.why, source.loading = found.local, found.why, None
        source.fetching, source.hub, source.fetched, source.look_again_s = None, "", False, 0.0

    def _chosen(self, name: str) -> str:
        model = self._models.get(name)
        return (model.tokenizer if model is not None else None) or self._choice

    def _is_named(self, name: str) -> bool:
        model = self._models.get(name)
        return model is not None and named_files(model, self._home) is not None

    def _source(self) -> TokenizerSource:
        return TokenizerSource(trusts_templates=self._trusts_templates)

    def _read(self, files: ModelFiles) -> TokenizerSource:
        found = self._loaded.get(files)
        if found is None:
            found = self._loaded[files] = read_files(files)
        source = self._source()
        if isinstance(found, str):
            source.why = found
        else:
            source.local = found
        return source

    def _look_for_files(self, source: TokenizerSource, model: str, root: str | None) -> None:
        source.look_again_s, chosen = math.inf, self._chosen(model)
        if chosen == WORKER:
            return
        settings = self._models.get(model)
        source.chat_template = settings.chat_template if settings is not None else None
        folder = self._folder(root) or self._folder(model)
        if folder is not None:
            self._use_folder(source, folder)
        elif chosen == AUTO:
            self._fetch(source, root if root is not None and is_hub_name(root) else model)

    def _fetch(self, source: TokenizerSource, name: str) -> None:
        """Fetch files in the background. The other sources serve meanwhile."""
        if not is_hub_name(name):
            return
        why_not = self._fetcher.why_not(name)
        if why_not is not None:
            source.hub = f"tokenizer files of {name} are not fetched: {why_not}"
            return
        source.hub = f"tokenizer files of {name} are being fetched from {self._fetcher.endpoint}"
        source.fetching = self._fetcher.fetch(name)

    def _use_folder(self, source: TokenizerSource, folder: Path) -> None:
        files = ModelFiles(folder, chat_template=source.chat_template)
        known = self._loaded.get(files)
        if isinstance(known, LocalModel):
            source.local = known
        elif known is not None:
            source.why = known
        else:
            source.loading = self._executor.submit(LocalModel, files)

    def _folder(self, name: str | None) -> Path | None:
        """Return a folder on this machine by path, or by hub name in the Hugging Face cache."""
        if not name:
            return None
        path = Path(name)
        if path.is_absolute():
            return path if (path / "tokenizer.json").is_file() else None
        return cached_snapshot(self._hub, name)

    def _settled(self, source: TokenizerSource) -> TokenizerSource:
        """Take over files that were fetched or read in the meantime."""
        if source.fetching is not None and source.fetching.done():
            self._end_fetch(source, source.fetching)
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

    def _end_fetch(self, source: TokenizerSource, fetching: Future[Fetched]) -> None:
        source.fetching = None
        fetched = Fetched(None, "it was not begun") if fetching.cancelled() else fetching.result()
        if fetched.folder is not None:
            source.hub, source.fetched = "", True
            self._use_folder(source, fetched.folder)
        else:
            source.hub = f"tokenizer files are not fetched: {fetched.problem}"
            source.look_again_s = self._clock() + fetched.again_s


async def ended(futures: Iterable[Future[Any]], within_s: float | None = None) -> bool:
    """Return whether work in threads ends in time. Its errors are for others, and asyncio logs none."""
    waiting = [asyncio.wrap_future(future) for future in futures]
    for one in waiting:
        one.add_done_callback(_retrieve)
    return not (await asyncio.wait(waiting, timeout=within_s))[1]


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def home_files(config: Config) -> ModelFiles | None:
    if config.tokenizer == WORKER:
        return None
    tokenizer = path_of(config.tokenizer)
    if config.model_dir is not None:
        return ModelFiles(Path(config.model_dir), tokenizer)
    return None if tokenizer is None else ModelFiles(tokenizer if tokenizer.is_dir() else tokenizer.parent, tokenizer)


def named_files(model: ModelConfig, home: ModelFiles | None) -> ModelFiles | None:
    if model.tokenizer == WORKER:
        return None
    tokenizer = path_of(model.tokenizer)
    if model.dir is not None:
        return ModelFiles(Path(model.dir), tokenizer, model.chat_template)
    if tokenizer is not None:
        return ModelFiles(tokenizer if tokenizer.is_dir() else tokenizer.parent, tokenizer, model.chat_template)
    return None if home is None else replace(home, chat_template=model.chat_template)


def read_files(files: ModelFiles) -> LocalModel | str:
    """Return a model folder, or the reason why it cannot be used."""
    try:
        return LocalModel(files)
    except Unrenderable as error:
        return error.reason


def places_of(model: ModelConfig | None) -> tuple[str | None, str | None, str | None]:
    """Return the folder, the chat template and the tokenizer that the settings of a model name; None for a model
    without settings.
    """
    return (None, None, None) if model is None else (model.dir, model.chat_template, model.tokenizer)
