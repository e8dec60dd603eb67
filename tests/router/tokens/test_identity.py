"""Every source of an identity, their order, and that nothing ever escapes."""

from __future__ import annotations

import asyncio
import json
from array import array
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backends.simulated
from backends.vllm.render import ChatRenderer
from router.config.model import Config, ModelConfig, ResidencyConfig
from router.prefix.chain import SEED, extend_chain, extra_bytes, pack_tokens
from router.prefix.prompt import Prompt, PromptSource
from router.tokens.identity import INLINE_BODY_BYTES, INLINE_NEW_BYTES, Identity
from router.tokens.intake import CHAT_PATH, COMPLETIONS_PATH, parse

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
RENDERER = ChatRenderer.load(MODEL_DIR)
TURN = "Please look at this function and say what is wrong with it. "


def chat(*contents: str, **fields: object) -> bytes:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def completion(prompt: object, **fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, **fields}).encode()


async def ask(identity: Identity, path: str, body: bytes, adapter: str | None = None) -> Prompt | None:
    parsed = parse(path, body)
    prompt = identity.identify_now(path, parsed, adapter)
    return prompt if prompt is not None else await identity.identify(path, parsed, adapter)


def exact_chain(body: bytes, block_tokens: int, adapter: str | None = None, salt: str | None = None) -> list[int]:
    ids = RENDERER.encode(RENDERER.render(json.loads(body)), False)
    name = [adapter] if adapter else []
    blocks = len(ids) // block_tokens
    extras = [extra_bytes(name + ([salt] if salt and not n else [])) for n in range(blocks)]
    return list(extend_chain(SEED, pack_tokens(ids), block_tokens, extras))


async def test_conversation_turn_by_turn(identity: Identity) -> None:
    contents: list[str] = []
    for number in range(8):
        contents += [f"{TURN * 3}{number}", f"{TURN}answer {number}"][: 1 if number == 7 else 2]
        body = chat(*contents)
        prompt = await ask(identity, CHAT_PATH, body)
        assert prompt.source is PromptSource.RENDERED and prompt.exact and not prompt.multiple
        assert list(prompt.chain(16)) == exact_chain(body, 16)
        assert list(prompt.chain(32)) == exact_chain(body, 32)
        assert prompt.tokens == len(RENDERER.encode(RENDERER.render(json.loads(body)), False))


async def test_short_and_known_are_answered_at_once(identity: Identity) -> None:
    long = chat(TURN * (INLINE_NEW_BYTES // len(TURN) + 5))
    assert identity.identify_now(CHAT_PATH, parse(CHAT_PATH, chat("hi")), None) is not None
    parsed = parse(CHAT_PATH, long)
    assert identity.identify_now(CHAT_PATH, parsed, None) is None
    first = await identity.identify(CHAT_PATH, parsed, None)
    again = identity.identify_now(CHAT_PATH, parse(CHAT_PATH, long), None)
    assert (
        first is not None
        and again is not None
        and list(again.chain(16)) == list(first.chain(16)) == exact_chain(long, 16)
    )
    assert identity.statistics()["off_loop"] == 1


async def test_large_bodies_are_read_in_a_thread(identity: Identity) -> None:
    body = chat("word " * (INLINE_BODY_BYTES // 5))
    prompt = await ask(identity, CHAT_PATH, body)
    assert prompt is not None and list(prompt.chain(16)) == exact_chain(body, 16)


@pytest.mark.parametrize(("adapter", "salt"), [(None, "pepper"), ("sql", None), ("sql", "pepper")])
async def test_adapter_and_salt(identity: Identity, adapter: str | None, salt: str | None) -> None:
    body = chat(TURN * 4, **({"cache_salt": salt} if salt else {}))
    prompt = await ask(identity, CHAT_PATH, body, adapter)
    assert prompt is not None and list(prompt.chain(16)) == exact_chain(body, 16, adapter, salt)


async def test_completions(identity: Identity) -> None:
    text = TURN * 4 + "<|im_end|>" + TURN * 4
    ids = RENDERER.encode(text, True)
    for prompt_field, source, tokens in (
        (text, PromptSource.RENDERED, len(ids)),
        ([text], PromptSource.RENDERED, len(ids)),
        ([text, "second"], PromptSource.RENDERED, len(ids) + len(RENDERER.encode("second", True))),
        (ids, PromptSource.IDS, len(ids)),
        ([ids, [1, 2, 3]], PromptSource.IDS, len(ids) + 3),
    ):
        prompt = await ask(identity, COMPLETIONS_PATH, completion(prompt_field))
        assert prompt is not None and prompt.source is source and prompt.tokens == tokens
        assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(ids), 16))
        assert prompt.multiple == (isinstance(prompt_field, list) and len(prompt_field) == 2)


async def test_tokenizer_framing_is_for_completions(folders: dict[str, Path]) -> None:
    identity = Identity(Config(model_dir=str(folders["llama_first"])), environ={})
    renderer = ChatRenderer.load(folders["llama_first"])
    text = "the quick brown fox " * 10
    for fields, special in (({}, True), ({"add_special_tokens": False}, False)):
        prompt = await ask(identity, COMPLETIONS_PATH, completion(text, **fields))
        ids = renderer.encode(text, special)
        assert prompt is not None and (prompt.tokens, ids[0] == 1) == (len(ids), special)
        assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(ids), 16))
    prompt = await ask(identity, CHAT_PATH, chat("hi", add_special_tokens=True))
    assert prompt is not None and prompt.tokens == len(renderer.encode(renderer.render(json.loads(chat("hi"))), True))
    await identity.aclose()


async def test_forwarded_ids_are_taken(identity: Identity) -> None:
    body = chat(TURN, kv_transfer_params={"prompt_token_ids": list(range(40))})
    prompt = await ask(identity, CHAT_PATH, body)
    assert prompt is not None and prompt.source is PromptSource.IDS and prompt.tokens == 40


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "{{ messages }}"},
        {"truncate_prompt_tokens": 5},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": "odd"},
        {"tools": "odd"},
        {"tools": [{"type": "other"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"messages": [5]},
        {"messages": [{"content": "no role"}]},
        {"continue_final_message": True},
    ],
)
async def test_what_cannot_be_rendered_goes_by_text(identity: Identity, fields: dict) -> None:
    prompt = await ask(identity, CHAT_PATH, chat(TURN, **fields))
    assert prompt is not None and prompt.source is PromptSource.TEXT and not prompt.exact and prompt.tokens >= 1
    assert sum(identity.statistics()["text_reasons"].values()) == 1


async def test_nothing_to_identify(identity: Identity) -> None:
    for path, body in (
        (CHAT_PATH, b'{"model": "m"}'),
        (COMPLETIONS_PATH, b'{"model": "m", "prompt": null}'),
        (COMPLETIONS_PATH, b'{"model": "m", "prompt": []}'),
        (COMPLETIONS_PATH, b'{"model": "m", "prompt": [["x"]]}'),
        (COMPLETIONS_PATH, b'{"model": "m", "prompt": [-1]}'),
        ("/v1/embeddings", b'{"model": "m", "input": "x"}'),
    ):
        assert await ask(identity, path, body) is None


NAMES = st.sampled_from(["role", "content", "type", "text", "function", "tool_calls", "name", "arguments"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=st.lists(JSON, max_size=3), tools=JSON, kwargs=JSON, prompt=JSON)
async def test_nothing_escapes(
    identity: Identity, messages: list, tools: object, kwargs: object, prompt: object
) -> None:
    body = {"model": "m", "messages": messages, "tools": tools, "chat_template_kwargs": kwargs}
    await ask(identity, CHAT_PATH, json.dumps(body).encode())
    if prompt is None or isinstance(prompt, (str, list)):
        await ask(identity, COMPLETIONS_PATH, json.dumps({"model": "m", "prompt": prompt}).encode())


# sources


def test_configured_folders_win(tmp_path: Path, folders: dict[str, Path]) -> None:
    models = {"special": ModelConfig(dir=str(folders["plain"])), "broken": ModelConfig(dir=str(tmp_path))}
    identity = Identity(Config(model_dir=str(MODEL_DIR), models=models), environ={})
    for model in ("special", "other", "broken"):
        identity.learn(model, str(folders["strips"]), None)
    assert identity.describe("special") == f"rendered locally from {folders['plain']}"
    assert identity.describe("other") == f"rendered locally from {MODEL_DIR}"
    assert identity.describe("broken").startswith("text only: ")
    identity.learn("broken", None, "http://127.0.0.1:1/tokenize")
    assert identity.describe("broken") == "worker's /tokenize"


async def test_tokenizer_apart_from_the_templates(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    body = chat(TURN * 3)
    for config in (
        Config(model_dir=str(tmp_path), tokenizer=str(MODEL_DIR / "tokenizer.json")),
        Config(tokenizer=str(MODEL_DIR)),
        Config(tokenizer=str(MODEL_DIR / "tokenizer.json")),
    ):
        identity = Identity(config, environ={})
        prompt = await ask(identity, CHAT_PATH, body)
        assert prompt is not None and prompt.exact
        await identity.aclose()


async def test_folders_found_by_what_workers_say(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).write_bytes((MODEL_DIR / name).read_bytes())
    environ = {"HF_HOME": str(tmp_path)}
    for model, root, where in (
        ("by-path", str(MODEL_DIR), MODEL_DIR),
        ("by-root", "org/name", snapshot),
        ("org/name", "/nowhere/else", snapshot),
    ):
        identity = Identity(Config(), environ=environ)
        identity.learn(model, root, None)
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": TURN * 3}]}).encode()
        prompt = await ask(identity, CHAT_PATH, body)
        assert prompt is not None and prompt.exact and list(prompt.chain(16)) == exact_chain(body, 16)
        assert identity.describe(model) == f"rendered locally from {where}"
        await identity.aclose()
    identity = Identity(Config(), environ=environ)
    for root in ("org/other", "../../etc", "org/..", None, ""):
        identity.learn(f"model {root}", root, None)
        assert identity.describe(f"model {root}").startswith("text only: ")
    await identity.aclose()


async def test_a_broken_folder_found_by_path(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    identity = Identity(Config(), environ={})
    identity.learn("m", str(tmp_path), None)
    prompt = await ask(identity, CHAT_PATH, chat(TURN))
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert identity.describe("m").startswith("text only: ") and "tokenizer.json" in identity.describe("m")
    await identity.aclose()


async def test_adapters_use_their_base(folders: dict[str, Path]) -> None:
    models = {"a": ModelConfig(dir=str(MODEL_DIR)), "b": ModelConfig(dir=str(folders["plain"]))}
    identity = Identity(Config(models=models), environ={})
    identity.learn("lora", "/adapters/lora", None, "a")
    body = json.dumps({"model": "lora", "messages": [{"role": "user", "content": TURN * 3}]}).encode()
    prompt = await ask(identity, CHAT_PATH, body, "lora")
    assert prompt is not None and list(prompt.chain(16)) == exact_chain(body, 16, "lora")
    assert identity.describe("lora") == f"rendered locally from {MODEL_DIR}"
    await identity.aclose()


async def test_requests_alike_in_parallel(identity: Identity) -> None:
    bodies = [chat(TURN * 200, "ok", f"question {number}") for number in range(12)]
    prompts = await asyncio.gather(*(ask(identity, CHAT_PATH, body) for body in bodies))
    for body, prompt in zip(bodies, prompts, strict=True):
        assert list(prompt.chain(16)) == exact_chain(body, 16)


async def test_a_template_with_a_clock_is_rendered_each_time(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((MODEL_DIR / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}{{ messages[0].content }}")
    identity = Identity(Config(model_dir=str(tmp_path)), environ={})
    for _ in range(2):
        assert (await ask(identity, CHAT_PATH, chat(TURN))) is not None
    assert identity.statistics()["requests"]["hits"] == 0
    await identity.aclose()


def test_ids_are_packed_as_events_are() -> None:
    assert array("I", [1, 2, 300]).tobytes() == pack_tokens([1, 2, 300])


async def test_memory_stays_within_the_configured_bytes() -> None:
    small = Config(model_dir=str(MODEL_DIR), residency=ResidencyConfig(memo_bytes=200_000))
    large = Config(model_dir=str(MODEL_DIR))
    held = []
    for config in (small, large):
        identity = Identity(config)
        for number in range(120):
            await ask(identity, CHAT_PATH, chat(f"{number} " + TURN * 40))
        statistics = identity.statistics()
        held.append(sum(statistics[part]["bytes"] for part in ("memo", "requests", "workers")))
        await identity.aclose()
    assert 0 < held[0] <= 200_000 < held[1]
