"""Model folders with different tokenizer habits, all made here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import backends.simulated
from router.config.model import Config
from router.tokens.identity import Identity

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")

TEXTS = [
    "the quick brown fox jumps over the lazy dog " * 20,
    "def f(x):\n    return x + 1\n\nclass A:\n    pass\n" * 20,
    "naïve café 日本語のテキスト e\u0301 Å 🙂 don't 3.14159\n\n\ttabs  and   spaces " * 20,
]

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}<s>assistant:"


def _save(folder: Path, tokenizer: Tokenizer, config: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, **config}))
    return folder


def byte_level(folder: Path, *tokens: AddedToken, **config: object) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([token for token in tokens if token.special])
    tokenizer.add_tokens([token for token in tokens if not token.special])
    return _save(folder, tokenizer, dict(config))


def sentence_piece(folder: Path, scheme: str, *, prepend_normalizer: bool = False, bos: bool = True) -> Path:
    """Llama-2's habit: a space becomes ▁, and one is put in front (`scheme`, or by a normalizer)."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(TEXTS, trainer)
    if prepend_normalizer:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _save(folder, tokenizer, {"bos_token": "<s>", "eos_token": "</s>"})


def special(text: str, **flags: bool) -> AddedToken:
    return AddedToken(text, special=True, normalized=False, **flags)


PLAIN = (special("<s>"), special("</s>"), special("<sep>"))


def make(kind: str, folder: Path) -> Path:
    makers = {
        "plain": lambda: byte_level(folder, *PLAIN),
        "strips": lambda: byte_level(
            folder,
            *PLAIN,
            special("<l>", lstrip=True),
            special("<r>", rstrip=True),
            special("<b>", lstrip=True, rstrip=True),
        ),
        "overlap": lambda: byte_level(folder, *PLAIN, special("<s><s>"), AddedToken("x<s", normalized=False)),
        "normalized": lambda: byte_level(folder, *PLAIN, AddedToken("<n>", special=True, normalized=True)),
        "single_word": lambda: byte_level(folder, *PLAIN, special("word", single_word=True)),
        "llama_first": lambda: sentence_piece(folder, "first"),
        "llama_always": lambda: sentence_piece(folder, "always"),
        "llama_normalizer": lambda: sentence_piece(folder, "never", prepend_normalizer=True),
        "shipped": lambda: Path(shutil.copytree(MODEL_DIR, folder)),
    }
    return makers[kind]()


KINDS = (
    "plain",
    "strips",
    "overlap",
    "normalized",
    "single_word",
    "llama_first",
    "llama_always",
    "llama_normalizer",
    "shipped",
)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {kind: make(kind, base / kind) for kind in KINDS}


@pytest.fixture
async def identity():
    made = Identity(Config(model_dir=str(MODEL_DIR)), environ={})
    yield made
    await made.aclose()
