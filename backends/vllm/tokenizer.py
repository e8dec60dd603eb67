"""A model folder's tokenizer files, read as transformers reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from backends.vllm.declared_tokens import DeclaredTokens, llama_from
from backends.vllm.unrenderable import BrokenFile, Unrenderable

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
    """Contents of a folder: the tokenizer, named tokens ("bos_token" -> text), chat templates by name, added tokens."""

    tokenizer: Any
    named_tokens: dict[str, str]
    templates: dict[str, str]
    special: tuple[SpecialToken, ...]


def read_tokenizer_files(folder: Path, tokenizer: Path | None = None) -> TokenizerFiles:
    """Read `folder`; `tokenizer` is a tokenizer.json, or a folder with one, outside it.

    Some classes of transformers build a tokenizer of their own from the file (``tokenizer_class``). Of these only
    ``LlamaTokenizer`` is followed. If another class builds a tokenizer that differs from the file, the ids differ from
    the worker's, and the worker's self-test shows it.

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
    declared = DeclaredTokens(
        config=config,
        special_tokens_map=_read_json(home / "special_tokens_map.json"),
        added_tokens=_read_json(home / "added_tokens.json"),
        model_config=_read_json(folder / "config.json"),
    )
    loaded = _load(path, declared)
    templates = _templates(home, config) or _templates(folder, _read_json(folder / "tokenizer_config.json"))
    named = {name: token.content for name, token in declared.named().items()}
    return TokenizerFiles(loaded, named, templates, special_tokens(loaded))


def special_tokens(tokenizer: Any) -> tuple[SpecialToken, ...]:
    return tuple(
        SpecialToken(t.content, token_id, t.special, t.normalized, t.lstrip, t.rstrip, t.single_word)
        for token_id, t in sorted(tokenizer.get_added_tokens_decoder().items())
        if t.content
    )


def is_failure(error: BaseException) -> bool:
    """Return whether `error` is a failure of the code and not an interrupt: any `Exception`, or a panic of Rust code.

    The class of a panic derives from BaseException only and cannot be imported.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _load(path: Path, declared: DeclaredTokens) -> Any:
    try:
        tokenizer = Tokenizer.from_file(str(path))
        if declared.builds_llama:
            tokenizer = llama_from(tokenizer, declared.config)
        tokenizer.add_tokens(declared.missing_in(tokenizer))
    except BaseException as error:  # tokenizers raises bare Exception for every kind of broken file, or panics
        if not is_failure(error):
            raise
        raise BrokenFile(f"{path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(declared.config.get("split_special_tokens"))
    return tokenizer


def _refuse_native(folder: Path) -> None:
    for architecture in _read_json(folder / "config.json").get("architectures") or ():
        if architecture in _NATIVE_ARCHITECTURES:
            raise Unrenderable(f"vLLM renders {architecture} with its own code")
    if (folder / "tekken.json").is_file() and any(folder.glob("consolidated*.safetensors")):
        raise Unrenderable("vLLM uses Mistral's own tokenizer for this folder")


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return chat templates by name; files take precedence over tokenizer_config.json."""
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


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except ValueError as error:
        raise BrokenFile(f"{path}: {error}") from error
    return content if isinstance(content, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenFile(f"{path}: {error}") from error
