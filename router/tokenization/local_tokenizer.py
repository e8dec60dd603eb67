"""One model folder at work: rendering, tokenising, cutting."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_64_intdigest

from backends.vllm.render import ChatRenderer
from backends.vllm.unrenderable import Unrenderable
from router.tokenization.long_text import SHORT_CHARS, encode_in_pieces
from router.tokenization.segmentation_check import segmentation_error
from router.tokenization.segmenter import Segmenter, Segments

_PROBES = ("a", "b 1", "0", "あ")
_UNKNOWN = "a\u0378\U0010fffd\ue0a0 \u0378 \U00013080\U00012080 \U00013081"
"""Characters that no vocabulary lists, some of them letters, so that no normalizer takes them away: what is left to a
tokenizer is bytes, or its unknown token."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files lie. `chat_template` is a file or the template itself; paths are not checked here."""

    folder: Path
    tokenizer: Path | None = None
    chat_template: str | None = None


class LocalModel:
    """A loaded folder. `memo_off` says why its texts are tokenised whole, None when they are not.

    `seed` differs from folder to folder; `prefix` are the ids that a plain completion gets in front.
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
        names = [str(files.folder), str(files.tokenizer), files.chat_template]
        self.seed = xxh3_64_intdigest(json.dumps(names).encode())

    def encode_from(self, text: str, segments: Segments, first: int) -> list[array[int]] | None:
        """Ids per unit of `text`, which is what follows the first `first` units; None when they cannot be told apart.

        Pure and without the GIL for most of its time: made for a thread.

        Raises:
            Unrenderable: text that is no valid Unicode.
        """
        return self.segmenter.split_ids(self.encode(text, framed=False), segments, first)

    def encode(self, text: str, *, framed: bool) -> array[int]:
        """Ids of a whole text, with the tokenizer's own ones where it is `framed`. A long text takes little memory.

        Raises:
            Unrenderable: text that is no valid Unicode, or that is long and cannot be divided.
        """
        if len(text) <= SHORT_CHARS:
            return array("I", self.renderer.encode(text, framed))
        if framed and self.appends_tokens:
            raise Unrenderable("the tokenizer appends tokens to a completion's prompt")
        ids = encode_in_pieces(lambda piece: self.renderer.encode(piece, False), text)
        return self.prefix + ids if framed else ids

    def _framing(self) -> tuple[array[int], array[int]]:
        """Ids that the tokenizer itself puts before and after a text."""
        for probe in _PROBES:
            bare, framed = self.renderer.encode(probe, False), self.renderer.encode(probe, True)
            for start in range(len(framed) - len(bare) + 1):
                if bare and framed[start : start + len(bare)] == bare:
                    return array("I", framed[:start]), array("I", framed[start + len(bare) :])
        return array("I"), array("I", framed)

    def describe(self) -> str:
        """Where prompts are rendered, and how, for people."""
        told = f"rendered locally from {self.files.folder}"
        return told if self.memo_off is None else f"{told} (prefix memo off: {self.memo_off})"
