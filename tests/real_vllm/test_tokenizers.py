"""Model folders in many shapes. The gateway's ids are compared with those of the tokenizer that vLLM loads from the
folder.
"""

import json
import os
import shutil
import subprocess

import pytest
from tokenizers import Tokenizer, models, normalizers, processors

from backends.clock.settings import ClockSettings
from backends.vllm.render import ChatRenderer

THEIRS = """\
import json, sys
from vllm.tokenizers import get_tokenizer
for line in sys.stdin:
    folder, texts = json.loads(line)
    tokenizer = get_tokenizer(folder)
    ids = [[tokenizer.encode(text, add_special_tokens=framed) for framed in (False, True)] for text in texts]
    print("ids " + json.dumps([tokenizer.special_tokens_map, ids]), flush=True)
"""
TEXTS = [
    "", " ", "x", "hello  world ", "<|im_start|>user\n hi<|im_end|> there\n<|im_start|>x", "a  <|im_end|>  b",
    "naïve 日本 🙂 e\u0301", "<extra> x <extra>", "<mask>", "don't 2024 , .", "<s> a<s>b </s>", "\r\n\x00",
]  # fmt: skip
EXTRA = {"content": "<extra>", "lstrip": False, "rstrip": True, "normalized": False, "single_word": False}
STRIPPING = {**EXTRA, "content": "<|im_end|>", "lstrip": True, "special": True}
CONFIGS = {
    "bare": {},
    "fast": {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True},
    "list": {"extra_special_tokens": ["<extra>"]},
    "legacy list": {"additional_special_tokens": ["<extra>"]},
    "dictionary": {"extra_special_tokens": {"my_token": "<extra>"}},
    "own name": {"image_token": "<extra>"},
    "new name": {"bos_token": "<mask>", "eos_token": "<|im_end|>"},
    "table": {"added_tokens_decoder": {"8000": {**EXTRA, "special": True}}},
    "table with a gap": {"added_tokens_decoder": {"9000": {**EXTRA, "special": False}}},
    "other flags": {"added_tokens_decoder": {"2": STRIPPING}},
    "split": {"split_special_tokens": True},
    "framing": {"add_bos_token": True, "bos_token": "<|im_start|>"},
}
FILES = {
    "added_tokens.json": {"<extra>": 8000},
    "special_tokens_map.json": {"mask_token": {**EXTRA, "content": "<mask>"}, "additional_special_tokens": ["<extra>"]},
}
LLAMA = {
    "file": {},
    "class": {"tokenizer_class": "LlamaTokenizer"},
    "legacy class": {"tokenizer_class": "LlamaTokenizerFast", "legacy": True},
    "class without space": {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False},
}


def llama_2() -> Tokenizer:
    """Make a tokenizer whose normalizer puts a space before every text and after every special token."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "x", "▁a", "▁x"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("▁", "x")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(pieces[:3])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


@pytest.fixture(scope="module")
def folders(named_model_dir, tmp_path_factory):
    base, made = tmp_path_factory.mktemp("shapes"), {}

    def copy(name: str):
        made[name] = base / name
        return shutil.copytree(named_model_dir, made[name])

    for name, config in CONFIGS.items():
        (copy(name) / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in FILES.items():
        folder = copy(name)
        (folder / "tokenizer_config.json").write_text("{}")
        (folder / name).write_text(json.dumps(content))
    for name, config in LLAMA.items():
        folder = copy(f"llama {name}")
        llama_2().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return made


def test_ids_and_named_tokens_equal_vllms(executable, folders) -> None:
    asked = "".join(json.dumps([str(folder), TEXTS]) + "\n" for folder in folders.values())
    command = [str(executable.with_name("python")), "-c", THEIRS]
    alone = {**os.environ, **ClockSettings().environment(), "HF_HUB_OFFLINE": "1"}
    printed = subprocess.run(
        command, input=asked, capture_output=True, text=True, timeout=300, check=True, env=alone
    ).stdout
    lines = [line.removeprefix("ids ") for line in printed.splitlines() if line.startswith("ids ")]
    wrong = []
    for (name, folder), line in zip(folders.items(), lines, strict=True):
        named, ids = json.loads(line)
        renderer = ChatRenderer.load(folder, chat_template="{{ names }}")
        ours = [[renderer.encode(text, framed) for framed in (False, True)] for text in TEXTS]
        if ours != ids or renderer._named_tokens != named:
            wrong.append((name, [text for text, mine, other in zip(TEXTS, ours, ids, strict=True) if mine != other]))
    assert not wrong
    assert len(lines) == len(CONFIGS) + len(FILES) + len(LLAMA)
