"""Write a tiny Llama with random weights in float32: real attention on real KV cache, so wrong KV changes the text.

It runs in the environment of `make pd-env`: `python make_model.py FOLDER TOKENIZER_FOLDER`.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

folder, source = Path(sys.argv[1]), Path(sys.argv[2])
tokenizer = json.loads((source / "tokenizer.json").read_text())
ids = [*tokenizer["model"]["vocab"].values(), *[token["id"] for token in tokenizer["added_tokens"]]]
torch.manual_seed(7)
config = LlamaConfig(
    vocab_size=max(ids) + 1,
    hidden_size=256,
    intermediate_size=1_024,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    initializer_range=0.08,
    max_position_embeddings=8_192,
)
LlamaForCausalLM(config).float().save_pretrained(folder)
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(source / name, folder / name)
