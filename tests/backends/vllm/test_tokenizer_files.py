import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers

import backends.simulated
from backends.vllm.render import ChatRenderer, Unrenderable
from docs.build.simulated_model import (
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    VOCABULARY_TOKENS,
    model_config,
    tokenizer_config,
)

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
BODY = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes((MODEL_DIR / "tokenizer.json").read_bytes())
    return tmp_path


def configure(folder: Path, **config: object) -> ChatRenderer:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatRenderer.load(folder)


def test_the_packaged_folder_is_what_its_script_makes() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCABULARY_TOKENS
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert json.loads((MODEL_DIR / "tokenizer_config.json").read_text()) == tokenizer_config()
    assert json.loads((MODEL_DIR / "config.json").read_text()) == model_config()
    assert tokenizer_config()["chat_template"] == CHAT_TEMPLATE
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir()) < 700_000


@pytest.mark.parametrize("text", ["", " ", "naïve 日本語 🙂\n\t", "<|im_start|>user\n\nhi<|im_end|>", "\x00\x7f"])
def test_text_survives_encoding_and_decoding(text: str) -> None:
    renderer = ChatRenderer.load(MODEL_DIR)
    assert renderer.decode(renderer.encode(text, True)) == text
    assert renderer.encode(text, False) == renderer.encode(text, True)
    with pytest.raises(Unrenderable):
        renderer.encode("\ud800", False)


def test_a_template_file_takes_precedence(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("file")
    assert configure(folder, chat_template="config").render(BODY) == "file"


def test_named_templates_are_read(folder: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    with_tools = {**BODY, "tools": [{"type": "function", "function": {"name": "f"}}]}
    for templates in (named, {entry["name"]: entry["template"] for entry in named}):
        renderer = configure(folder, chat_template=templates)
        assert (renderer.render(BODY), renderer.render(with_tools)) == ("plain", "tools")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("more")
    (folder / "chat_template.jinja").write_text("file")
    renderer = configure(folder)
    assert (renderer.render(BODY), renderer.render(with_tools)) == ("file", "more")


def test_template_given_as_text_or_path(folder: Path, tmp_path: Path) -> None:
    configure(folder, chat_template="config")
    (tmp_path / "own.txt").write_text("own")
    assert ChatRenderer.load(folder, "{{ messages[0].content }}").render(BODY) == "x"
    assert ChatRenderer.load(folder, str(tmp_path / "own.txt")).render(BODY) == "own"
    with pytest.raises(Unrenderable, match="missing"):
        ChatRenderer.load(folder, str(tmp_path / "missing"))


def test_without_a_template_only_completions_work(folder: Path) -> None:
    renderer = ChatRenderer.load(folder)
    assert renderer.encode("x", True)
    with pytest.raises(Unrenderable, match="no chat template"):
        renderer.render(BODY)


def test_a_tokenizer_may_lie_outside_the_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    apart = tmp_path_factory.mktemp("apart")
    (apart / "tokenizer_config.json").write_text(json.dumps({"chat_template": "t{{ bos_token }}", "bos_token": "<b>"}))
    for tokenizer in (folder, folder / "tokenizer.json"):
        assert ChatRenderer.load(apart, tokenizer=tokenizer).render(BODY) == "t<b>"


def test_named_tokens_are_read_from_either_file(folder: Path) -> None:
    """special_tokens_map.json counts only if tokenizer_config.json has no table, and then takes precedence."""
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<m>"}, "eos_token": "<e>"}))
    config = {"bos_token": "<c>", "eos_token": None, "chat_template": "{{ bos_token }}{{ eos_token }}"}
    assert configure(folder, **config).render(BODY) == "<m><e>"
    assert configure(folder, **config, added_tokens_decoder={}).render(BODY) == "<c>"


def test_tokens_declared_only_by_the_configuration_are_added(folder: Path) -> None:
    entry = {"content": "<extra>", "special": True, "lstrip": False, "rstrip": True, "normalized": False}
    renderer = configure(folder, added_tokens_decoder={"8000": entry, "1": {"content": "<|im_start|>"}})
    assert renderer.encode("<extra>", False) == [8000]
    assert [token.rstrip for token in renderer.special if token.text == "<extra>"] == [True]
    assert configure(folder, added_tokens_decoder={"9000": entry}).encode("<extra>", False) == [8000]
    with pytest.raises(Unrenderable, match="int"):
        configure(folder, added_tokens_decoder={"x": entry})


def test_the_configuration_changes_flags(folder: Path) -> None:
    entry = {"content": "<|im_end|>", "special": True, "lstrip": True, "rstrip": False, "normalized": False}
    assert len(configure(folder).encode("a  <|im_end|>", False)) > 2
    assert configure(folder, added_tokens_decoder={"2": entry}).encode("a  <|im_end|>", False)[1:] == [2]


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": ["<extra>"]}),
        ("tokenizer_config.json", {"additional_special_tokens": [{"content": "<extra>"}]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"my_token": "<extra>"}}),
        ("tokenizer_config.json", {"image_token": "<extra>"}),
        ("tokenizer_config.json", {"bos_token": "<extra>"}),
        ("special_tokens_map.json", {"mask_token": "<extra>"}),
        ("special_tokens_map.json", {"additional_special_tokens": ["<extra>"]}),
        ("added_tokens.json", {"<extra>": 8000}),
    ],
)
def test_further_tokens_are_added(folder: Path, name: str, declared: dict) -> None:
    assert len(ChatRenderer.load(folder).encode("x<extra>x", False)) > 3
    (folder / name).write_text(json.dumps(declared))
    assert ChatRenderer.load(folder).encode("x<extra>x", False)[1] == 8000


def test_named_tokens_of_one_model_are_read(folder: Path) -> None:
    template = "{{ my_token }}{{ image_token }}{{ unk_token }}"
    renderer = configure(folder, extra_special_tokens={"my_token": "<y>"}, image_token="<i>", chat_template=template)
    assert renderer.render(BODY) == "<y><i>"


def test_special_tokens_are_text_where_the_configuration_says_so(folder: Path) -> None:
    assert configure(folder).encode("<|im_end|>", False) == [2]
    assert len(configure(folder, split_special_tokens=True).encode("<|im_end|>", False)) > 1


@pytest.mark.parametrize(
    ("config", "model_type", "pieces"),
    [
        ({}, "llama", ["▁a", "<s>", "▁b"]),
        ({"tokenizer_class": "LlamaTokenizer"}, "llama", ["▁a", "<s>", "b"]),
        ({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, "llama", ["▁a", "<s>", "▁b"]),
        ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, "llama", ["a", "<s>", "b"]),
        ({"tokenizer_class": "LlamaTokenizer"}, "mistral", ["▁a", "<s>", "▁b"]),
    ],
)
def test_llama_tokenizers_are_rebuilt_as_transformers_does(
    tmp_path: Path, config: dict, model_type: str, pieces: list
) -> None:
    """A folder of the Llama-2 era: its normalizer puts a space before the text that follows a special token."""
    vocabulary = {piece: place for place, piece in enumerate(["<unk>", "<s>", "</s>", "a", "b", "▁", "▁a", "▁b"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("▁", "b")], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    renderer = configure(tmp_path, **config, chat_template="{{ eos_token }}")
    assert [renderer.tokenizer.id_to_token(token_id) for token_id in renderer.encode("a<s>b", False)] == pieces
    assert renderer.render(BODY) == ("</s>" if renderer.tokenizer.normalizer is None else "")


def test_other_classes_keep_their_file(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert configure(tmp_path, tokenizer_class="LlamaTokenizer").encode("a", False) == [0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "not json"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}'),
        ("config.json", '{"architectures": ["GptOssForCausalLM"]}'),
    ],
)
def test_an_unusable_folder_is_refused(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(Unrenderable):
        ChatRenderer.load(folder)


def test_missing_and_native_tokenizers_are_refused(folder: Path) -> None:
    (folder / "tekken.json").write_text("{}")
    ChatRenderer.load(folder)
    (folder / "consolidated.safetensors").write_text("")
    with pytest.raises(Unrenderable, match="Mistral"):
        ChatRenderer.load(folder)
    with pytest.raises(Unrenderable, match="does not exist"):
        ChatRenderer.load(folder / "nothing")


def test_truncation_and_padding_in_the_file_are_ignored(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert len(ChatRenderer.load(folder).encode("one two three four five six seven", False)) == len(
        ChatRenderer.load(MODEL_DIR).encode("one two three four five six seven", False)
    )
