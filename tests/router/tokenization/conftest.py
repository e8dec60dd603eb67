"""Model folders with different kinds of tokenizers, all made here, in a few seconds."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import backends.simulated
from router.config.model import Config
from router.tokenization.local.local_tokenizer import LocalModel, ModelFiles
from router.tokenization.prompt_identifier import PromptIdentifier

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")

TEXTS = [
    "the quick brown fox jumps over the lazy dog " * 20,
    "def f(x):\n    return x + 1\n\nclass A:\n    pass\n" * 20,
    "naïve café 日本語のテキスト e\u0301 Å 🙂 don't 3.14159\n\n\ttabs  and   spaces " * 20,
]

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}<s>assistant:"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Llama 3's pattern. Qwen's takes digits one by one."""


def special(text: str, **flags: bool) -> AddedToken:
    return AddedToken(text, special=True, **{"normalized": False, **flags})


def plain(text: str, **flags: bool) -> AddedToken:
    return AddedToken(text, special=False, **{"normalized": False, **flags})


PLAIN = (special("<s>"), special("</s>"), special("<sep>"))
FLAGS = (special("<l>", lstrip=True), special("<r>", rstrip=True), special("<b>", lstrip=True, rstrip=True))
WHOLE_WORDS = (special("word", single_word=True), plain("x<s", single_word=True), plain("a ", single_word=True))
THINKING = (special("<|im_start|>"), special("<|im_end|>"), plain("<think>"), plain("</think>"), plain("<call>"))
BOS = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
BOS_EOS = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])


def byte_level(*tokens: AddedToken, prefix_space: bool = False, words: str | None = None) -> Tokenizer:
    """GPT-2's kind; with `words`, a pattern of its own, Llama-3's and Qwen's."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=words is not None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    if words is not None:
        split = pre_tokenizers.Split(Regex(words), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def normalized_by(normalizer: normalizers.Normalizer, *tokens: AddedToken) -> Tokenizer:
    """Byte-level, with a normalizer that changes or joins characters."""
    tokenizer = byte_level(*tokens)
    tokenizer.normalizer = normalizer
    return tokenizer


def sentence_piece(scheme: str, *tokens: AddedToken, legacy: bool = False, byte_fallback: bool = False) -> Tokenizer:
    """Llama-2's kind: a space becomes ▁, and one is put in front (by `scheme`; by a normalizer if `legacy`)."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<unk>", "<s>", "</s>", *byte_pieces], show_progress=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(TEXTS, trainer)
    if byte_pieces:  # trained as added tokens, they must be pieces only
        content = json.loads(tokenizer.to_str())
        content["added_tokens"] = content["added_tokens"][:3]
        tokenizer = Tokenizer.from_str(json.dumps(content))
    if legacy:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.post_processor = BOS
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def unigram(normalizer: normalizers.Normalizer, *tokens: AddedToken, byte_fallback: bool = False) -> Tokenizer:
    """The kind of T5 and XLM-R, with or without bytes for unknown text."""
    trained = Tokenizer(models.Unigram())
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(TEXTS, trainer)
    pieces = [tuple(piece) for piece in json.loads(trained.to_str())["model"]["vocab"]]
    pieces += [(f"<0x{byte:02X}>", -9.0) for byte in range(256)] if byte_fallback else []
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = BOS_EOS
    tokenizer.add_tokens([*PLAIN[:2], *tokens])
    return tokenizer


def word_piece(*tokens: AddedToken) -> Tokenizer:
    """BERT's kind: lower case, no accents, separate punctuation, and a token of its own for unknown text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def llama_3() -> Tokenizer:
    reserved = (special(f"<|reserved_{number}|>") for number in range(60))
    tokenizer = byte_level(special("<|begin|>"), special("<|head|>"), special("<|eot|>"), *reserved, words=WORDS)
    begin = tokenizer.token_to_id("<|begin|>")
    template = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen() -> Tokenizer:
    tokenizer = byte_level(*THINKING, words=WORDS.replace("{1,3}", ""))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def dropping_out() -> Tokenizer:
    """Tokenises the same text differently every second time."""
    content = json.loads(byte_level(*PLAIN).to_str())
    content["model"]["dropout"] = 0.5
    return Tokenizer.from_str(json.dumps(content))


def squeezing() -> normalizers.Normalizer:
    replace = normalizers.Replace(Regex(r"\s+"), " ")
    return normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Lowercase(), replace])


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "plain": lambda: byte_level(*PLAIN),
    "gpt2": lambda: byte_level(special("<|endoftext|>", normalized=True)),
    "prefix_space": lambda: byte_level(*PLAIN, *FLAGS, prefix_space=True),
    "llama_3": llama_3,
    "qwen": qwen,
    "strips": lambda: byte_level(*PLAIN, *FLAGS),
    "overlap": lambda: byte_level(*PLAIN, special("<s><s>"), plain("x<s"), plain("s>"), plain("<s><se")),
    "mid_text": lambda: byte_level(*PLAIN, plain("ing"), plain(" the"), plain("\n\n"), plain("  "), plain("é")),
    "two_passes": lambda: byte_level(*PLAIN, plain("x<s", normalized=True), plain("</", normalized=True)),
    "normalized": lambda: byte_level(*PLAIN, special("<n>", normalized=True)),
    "single_word": lambda: byte_level(*PLAIN, *WHOLE_WORDS, special("user"), special("<l>", lstrip=True)),
    "nfkc": lambda: normalized_by(normalizers.NFKC(), *PLAIN, *FLAGS, plain("\uff21", normalized=True)),
    "lowercase": lambda: normalized_by(normalizers.Lowercase(), *PLAIN, plain("<S>", normalized=True)),
    "squeezing": lambda: normalized_by(squeezing(), *PLAIN, *FLAGS),
    "llama_first": lambda: sentence_piece("first", byte_fallback=True),
    "llama_always": lambda: sentence_piece("always"),
    "llama_legacy": lambda: sentence_piece("never", *FLAGS, plain("[INST]"), legacy=True, byte_fallback=True),
    "unigram": lambda: unigram(normalizers.NFKC(), *FLAGS, byte_fallback=True),
    "unigram_unknown": lambda: unigram(squeezing(), plain("<call>"), plain("ing", single_word=True)),
    "word_piece": lambda: word_piece(special("[INST]"), plain("[/INST]", normalized=True)),
    "all_normalized": lambda: normalized_by(normalizers.NFC(), special("<s>", normalized=True)),
    "no_tokens": lambda: byte_level(),
    "dropping_out": dropping_out,
}
KINDS = (*MAKERS, "shipped")
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    for kind, made in MAKERS.items():
        (base / kind).mkdir()
        tokenizer = made()
        names = {name: text for name, text in NAMES.items() if tokenizer.token_to_id(text) is not None}
        tokenizer.save(str(base / kind / "tokenizer.json"))
        (base / kind / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, **names}))
    shutil.copytree(MODEL_DIR, base / "shipped")
    return {kind: base / kind for kind in KINDS}


@pytest.fixture(scope="session")
def loaded(folders: dict[str, Path]) -> dict[str, LocalModel]:
    return {kind: LocalModel(ModelFiles(folder)) for kind, folder in folders.items()}


@pytest.fixture
async def identifier():
    """Return a maker of identifiers, which are closed in the end."""
    made = []

    def identifier(config, **settings):
        made.append(PromptIdentifier(config, **{"environ": {}, **settings}))
        return made[-1]

    yield identifier
    for one in made:
        await one.aclose()


@pytest.fixture
def identity(identifier):
    return identifier(Config(model_dir=str(MODEL_DIR)), limit_s=lambda size_bytes: 60.0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS)
