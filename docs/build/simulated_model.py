"""Make the embedded worker's model folder: ``python -m docs.build.simulated_model [FOLDER]``.

The tokenizer is a byte-level BPE trained on the sources of Python's standard library, which every machine has and whose
licence is clear (see model/README.md). The same standard library gives the same result. The result is committed, so
set-up does not run this module.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_TOKENS = 8_000
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

CONTEXT_TOKENS = 131_072

_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}
)

CHAT_TEMPLATE = """\
{#- Every turn is "<|im_start|>ROLE\\n", its text untouched, "<|im_end|>\\n". What a turn renders to depends on that
    turn alone, so that a longer conversation starts with exactly the text of the shorter one. -#}
{%- if tools -%}
  {{- '<|im_start|>tools\\n' -}}
  {%- for tool in tools -%}
    {{- tool | tojson -}}{{- '\\n' -}}
  {%- endfor -%}
  {{- 'Call one by writing <call>{"name": NAME, "arguments": {...}}</call>.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message['role'] + '\\n' -}}
  {%- if message['content'] is string -%}
    {{- message['content'] -}}
  {%- elif message['content'] -%}
    {{- message['content'] | tojson -}}
  {%- endif -%}
  {%- for call in message['tool_calls'] or [] -%}
    {{- '<call>{"name": ' + (call['function']['name'] | tojson) -}}
    {{- ', "arguments": ' + (call['function']['arguments'] | tojson) + '}</call>' -}}
  {%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def standard_library_sources() -> list[Path]:
    """Return the standard library's Python files in a fixed order, without tests and character tables."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in root.rglob("*.py") if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts)]
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def _texts() -> Iterator[str]:
    for path in standard_library_sources():
        yield path.read_text(encoding="utf-8", errors="replace")


def train_tokenizer(texts: Iterator[str]) -> Any:
    """Train a byte-level BPE of `VOCABULARY_TOKENS` entries with GPT-2's split rule and no space put in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    """Return the settings that `transformers` needs in addition to tokenizer.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
        "chat_template": CHAT_TEMPLATE,
    }


def model_config() -> dict[str, Any]:
    """Return a very small Llama shape that vLLM loads with ``--load-format dummy``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY_TOKENS,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index(TURN_END),
        "pad_token_id": SPECIAL_TOKENS.index(END_OF_TEXT),
    }


def write_model(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer(_texts()).save(str(folder / "tokenizer.json"), pretty=False)
    for name, content in (("tokenizer_config.json", tokenizer_config()), ("config.json", model_config())):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "backends/simulated/model")
