"""Tokens declared beside tokenizer.json, and changes that a tokenizer's class makes to that file.

This follows transformers 5, which vLLM 0.33 needs. tokenizer_config.json declares tokens with flags, names for some of
them, and further tokens. added_tokens.json and special_tokens_map.json count only if tokenizer_config.json has no
`added_tokens_decoder`. Declared tokens that the tokenizer lacks are added, at the next free ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_LLAMA = "LlamaTokenizer"
_LLAMA_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@dataclass(frozen=True, slots=True)
class DeclaredTokens:
    """The files beside tokenizer.json, as objects: empty if a file is missing."""

    config: Mapping[str, Any]
    special_tokens_map: Mapping[str, Any]
    added_tokens: Mapping[str, Any]
    model_config: Mapping[str, Any]

    @property
    def builds_llama(self) -> bool:
        """Return whether transformers builds the tokenizer again from the file's vocabulary and merges.

        For other families it ignores the name of this class.
        """
        name = self.config.get("tokenizer_class") or self.model_config.get("tokenizer_class")
        return str(name).removesuffix("Fast") == _LLAMA and self.model_config.get("model_type") == "llama"

    def named(self) -> dict[str, AddedToken]:
        """Return tokens by name ("bos_token"), including names that are specific to this model ("image_token")."""
        found = dict(_LLAMA_NAMES) if self.builds_llama else {}
        found |= {key: value for key, value in self._settings().items() if key.endswith("_token") and _is_token(value)}
        extra = self.config.get("extra_special_tokens")
        found |= extra if isinstance(extra, dict) else {}
        return {name: _token(found[name]) for name in (*NAMES, *(found.keys() - set(NAMES))) if name in found}

    def missing_in(self, tokenizer: Tokenizer) -> list[AddedToken]:
        table = list(tokenizer.get_added_tokens_decoder().values())
        named, known = self.named(), {_identity(token) for token in table}
        missing = [token for token in self._by_id() if _identity(token) not in known]
        texts = {token.content for token in (*table, *missing)}
        for token in (*named.values(), *self._further()):
            if token.content not in texts:
                texts.add(token.content)
                missing.append(token)
        names = {token.content for token in named.values()}
        for token in missing:
            token.special = token.special or token.content in names
        return missing

    @property
    def _counts_all_files(self) -> bool:
        return "added_tokens_decoder" not in self.config

    def _settings(self) -> dict[str, Any]:
        settings = {key: value for key, value in self.config.items() if value is not None}
        return settings | dict(self.special_tokens_map) if self._counts_all_files else settings

    def _further(self) -> list[AddedToken]:
        settings = self._settings()
        listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
        return [_token(value) for value in listed if _is_token(value)] if isinstance(listed, list) else []

    def _by_id(self) -> list[AddedToken]:
        if not self._counts_all_files:
            entries = self.config["added_tokens_decoder"] or {}
            ordered = sorted(entries.items(), key=lambda item: int(item[0]))
            return [_token(entry, special=False) for _, entry in ordered if _is_token(entry)]
        special = {token.content for token in (*self.named().values(), *self._further())}
        ordered = sorted(self.added_tokens.items(), key=lambda item: int(item[1]))
        return [AddedToken(text, normalized=text not in special, special=text in special) for text, _ in ordered]


def llama_from(tokenizer: Tokenizer, config: Mapping[str, Any]) -> Tokenizer:
    """Return the parts of a file that ``LlamaTokenizer`` keeps: vocabulary, merges, added tokens and the tokens put
    before a text.

    A folder of the Llama-2 era has a normalizer that puts a space after every special token; the class drops it.
    """
    content = json.loads(tokenizer.to_str())
    if content["model"]["type"] != "BPE":
        return tokenizer
    scheme = "always" if config.get("legacy") else "first"
    if config.get("add_prefix_space") is False:
        scheme = "never"
    model = {"type": "BPE", "vocab": content["model"]["vocab"], "merges": content["model"]["merges"]}
    content["model"] = {**model, "fuse_unk": True, "byte_fallback": True}
    content["normalizer"] = None
    content["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": scheme,
        "split": False,
    }
    return Tokenizer.from_str(json.dumps(content))


def _is_token(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str))


def _token(value: Any, *, special: bool = True) -> AddedToken:
    """Return a token given as text, or with its flags. Tokens in a table by id carry their own `special` flag."""
    if isinstance(value, str):
        return AddedToken(value, special=special)
    flags = {name: bool(value[name]) for name in _FLAGS if name in value}
    return AddedToken(value["content"], **{"special": special, **flags})


def _identity(token: AddedToken) -> tuple[object, ...]:
    return (token.content, *(getattr(token, flag) for flag in _FLAGS))
