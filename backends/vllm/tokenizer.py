"""A model folder's tokenizer files, read as transformers reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from backends.vllm.unrenderable import Unrenderable

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NATIVE_ARCHITECTURES = frozenset(
    {
        "GptOssForCausalLM",
        "Alpamayo2Super",
        "MoonshotKimiaForCausalLM",
        "KimiK3ForConditionalGeneration",
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "DeepseekV41ForCausalLM",
        "InklingForCausalLM",
        "InklingForConditionalGeneration",
    }
)
"""Families that vLLM 0.33 renders with code of their own (vllm/config/model.py)."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """One added token and how it is found in text. Meaning of the flags: tokenizers' ``AddedToken``."""

    text: str
    id: int
    special: bool
    normalized: bool
    lstrip: bool
    rstrip: bool
    single_word: bool


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a folder says: the tokenizer, named tokens ("bos_token" -> text), chat templates by name, added tokens."""

    tokenizer: Any
    named_tokens: dict[str, str]
    templates: dict[str, str]
    special: tuple[SpecialToken, ...]


def read_tokenizer_files(folder: Path, tokenizer: Path | None = None) -> TokenizerFiles:
    """Read `folder`; `tokenizer` is a tokenizer.json, or a folder with one, that lies apart from it.

    Raises:
        Unrenderable: files are missing or broken, or vLLM does not render this family from them.
    """
    _refuse_native(folder)
    home = folder if tokenizer is None else tokenizer
    path = home / "tokenizer.json" if home.is_dir() else home
    if not path.is_file():
        raise Unrenderable(f"{path} does not exist")
    home = path.parent
    config = _read_json(home / "tokenizer_config.json") or _read_json(folder / "tokenizer_config.json")
    loaded = _load(path)
    _add_missing(loaded, config)
    templates = _templates(home, config) or _templates(folder, _read_json(folder / "tokenizer_config.json"))
    named = _read_json(home / "special_tokens_map.json") | {k: v for k, v in config.items() if v is not None}
    return TokenizerFiles(loaded, _named(named), templates, special_tokens(loaded))


def special_tokens(tokenizer: Any) -> tuple[SpecialToken, ...]:
    """The table of added tokens."""
    return tuple(
        SpecialToken(t.content, token_id, t.special, t.normalized, t.lstrip, t.rstrip, t.single_word)
        for token_id, t in sorted(tokenizer.get_added_tokens_decoder().items())
        if t.content
    )


def _load(path: Path) -> Any:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for every kind of broken file
        raise Unrenderable(f"{path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _refuse_native(folder: Path) -> None:
    for architecture in _read_json(folder / "config.json").get("architectures") or ():
        if architecture in _NATIVE_ARCHITECTURES:
            raise Unrenderable(f"vLLM renders {architecture} with its own code")
    if (folder / "tekken.json").is_file() and any(folder.glob("consolidated*.safetensors")):
        raise Unrenderable("vLLM uses Mistral's own tokenizer for this folder")


def _add_missing(tokenizer: Any, config: dict[str, Any]) -> None:
    """Add tokens that only tokenizer_config.json declares, as transformers does."""
    declared = config.get("added_tokens_decoder")
    for token_id, entry in sorted((declared or {}).items(), key=lambda item: int(item[0])):
        if not isinstance(entry, dict) or tokenizer.token_to_id(entry.get("content", "")) is not None:
            continue
        flags = {name: bool(entry[name]) for name in ("single_word", "lstrip", "rstrip", "normalized") if name in entry}
        token = AddedToken(entry["content"], special=bool(entry.get("special")), **flags)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != int(token_id):
            raise Unrenderable(f"added token {token.content!r} has no place at id {token_id}")


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; files win over tokenizer_config.json."""
    found = {path.stem: _read_text(path) for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = _read_text(folder / "chat_template.jinja")
    if found:
        return found
    template = config.get("chat_template")
    if isinstance(template, str):
        return {"default": template}
    if isinstance(template, dict):
        return {name: text for name, text in template.items() if isinstance(text, str)}
    if isinstance(template, list):
        return {e["name"]: e["template"] for e in template if isinstance(e, dict) and {"name", "template"} <= e.keys()}
    return {}


def _named(config: dict[str, Any]) -> dict[str, str]:
    named = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except ValueError as error:
        raise Unrenderable(f"{path}: {error}") from error
    return content if isinstance(content, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unrenderable(f"{path}: {error}") from error
