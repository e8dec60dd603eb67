"""One model folder: rendering, tokenising and segmenting its texts."""

from __future__ import annotations

import json
import os
from array import array
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_64_intdigest

from backends.vllm.render import ChatRenderer
from backends.vllm.unrenderable import Unrenderable
from router.tokenization.local.long_text import SHORT_CHARS, encode_in_pieces
from router.tokenization.local.segmentation_check import segmentation_error
from router.tokenization.local.segmenter import Segmenter, Segments
from router.tokenization.local.word_memo import word_memo

_PROBES = ("a", "b 1", "0", "あ")
_UNKNOWN = "a\u0378\U0010fffd\ue0a0 \u0378 \U00013080\U00012080 \U00013081"
"""Characters that no vocabulary lists, some of them letters, so that no normalizer removes them. A tokenizer can only
use bytes or its unknown token for them."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The places of a model's files. `chat_template` is a file or the template itself; paths are not checked here."""

    folder: Path
    tokenizer: Path | None = None
    chat_template: str | None = None


class LocalModel:
    """A loaded folder. `memo_off` says why its texts are tokenised whole; None if they are not.

    `seed` differs between folders, and between contents of one folder. `prefix` contains the ids put before a plain
    completion.
    """

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        self.renderer = ChatRenderer.load(files.folder, files.chat_template, files.tokenizer)
        self.segmenter = Segmenter(
            self.renderer.special,
            normalizes=self.renderer.tokenizer.normalizer is not None,
            ambiguous=frozenset(self.renderer.encode(_UNKNOWN, False)),
        )
        self.prefix, suffix = self._framing()
        self.appends_tokens = bool(suffix)
        self.memo_off = segmentation_error(self.renderer, self.segmenter)
        if self.memo_off is not None:
            self.segmenter.disable()
        self._words = word_memo(self.renderer) if self.memo_off is None else None
        self.seed = _seed(files)

    def encode_from(self, text: str, segments: Segments, first: int) -> list[array[int]] | None:
        """Return the ids of `text` per segment; None if they cannot be split. `text` starts after the first `first`
        segments.

        Made for a thread: a long text is tokenised without the GIL most of the time.

        Raises:
            Unrenderable: the text is not valid Unicode.
        """
        ids = self._words.encode(text) if self._words is not None else None
        return self.segmenter.split_ids(ids if ids is not None else self.encode(text, framed=False), segments, first)

    def encode(self, text: str, *, framed: bool) -> array[int]:
        """Return the ids of a whole text, with the tokenizer's own tokens if `framed`. A long text takes little memory.

        Raises:
            Unrenderable: the text is not valid Unicode, or is long and cannot be divided.
        """
        if len(text) <= SHORT_CHARS:
            return array("I", self.renderer.encode(text, framed))
        if framed and self.appends_tokens:
            raise Unrenderable("the tokenizer appends tokens to a completion's prompt")
        ids = encode_in_pieces(lambda piece: self.renderer.encode(piece, False), text)
        return self.prefix + ids if framed else ids

    def _framing(self) -> tuple[array[int], array[int]]:
        for probe in _PROBES:
            bare, framed = self.renderer.encode(probe, False), self.renderer.encode(probe, True)
            for start in range(len(framed) - len(bare) + 1):
                if bare and framed[start : start + len(bare)] == bare:
                    return array("I", framed[:start]), array("I", framed[start + len(bare) :])
        return array("I"), array("I", framed)

    def describe(self) -> str:
        source = f"rendered locally from {self.files.folder}"
        return source if self.memo_off is None else f"{source} (prefix memo off: {self.memo_off})"


def _seed(files: ModelFiles) -> int:
    """Return a number for these files as they are now. Files that were replaced have another one."""
    paths = [files.tokenizer, files.folder / "tokenizer.json", files.folder / "tokenizer_config.json"]
    names = [str(files.folder), str(files.tokenizer), files.chat_template]
    return xxh3_64_intdigest(json.dumps([*names, *map(_version, [*paths, files.chat_template])]).encode())


def _version(path: Path | str | None) -> tuple[int, ...]:
    try:
        found = os.stat(path) if path is not None else None
    except (OSError, ValueError):  # a template as text is no path
        found = None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found is not None else ()
