import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backends.simulated
from backends.vllm.render import ChatRenderer
from router.config.model import Config, ModelConfig, ResidencyConfig
from router.residency.chain import SEED, extend_chain, extra_bytes, pack_tokens
from router.residency.prompt import Prompt, PromptSource
from router.tokenization.body.intake import WHOLE_BYTES, parse
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from router.tokenization.prompt_identifier import INLINE_NEW_BYTES, PromptIdentifier

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
RENDERER = ChatRenderer.load(MODEL_DIR)
TURN = "Please look at this function and say what is wrong with it. "


def chat(*contents: str, **fields: object) -> bytes:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def completion(prompt: object, **fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, **fields}).encode()


async def ask(identity: PromptIdentifier, path: str, body: bytes, adapter: str | None = None) -> Prompt | None:
    parsed = parse(path, body)
    return await identity.identify(path, parsed, adapter)


def exact_chain(body: bytes, block_tokens: int, adapter: str | None = None, salt: str | None = None) -> list[int]:
    ids = RENDERER.encode(RENDERER.render(json.loads(body)), False)
    name = [adapter] if adapter else []
    blocks = len(ids) // block_tokens
    extras = [extra_bytes(name + ([salt] if salt and not n else [])) for n in range(blocks)]
    return list(extend_chain(SEED, pack_tokens(ids), block_tokens, extras))


async def test_a_conversation_keeps_its_hashes_turn_by_turn(identity: PromptIdentifier) -> None:
    contents: list[str] = []
    for number in range(8):
        contents += [f"{TURN * 3}{number}", f"{TURN}answer {number}"][: 1 if number == 7 else 2]
        body = chat(*contents)
        prompt = await ask(identity, CHAT_PATH, body)
        assert prompt.source is PromptSource.RENDERED and prompt.exact and not prompt.multiple
        assert list(prompt.chain(16)) == exact_chain(body, 16)
        assert list(prompt.chain(32)) == exact_chain(body, 32)
        assert prompt.tokens == len(RENDERER.encode(RENDERER.render(json.loads(body)), False))


async def test_short_and_known_prompts_are_identified_at_once(identity: PromptIdentifier) -> None:
    long = chat(TURN * (INLINE_NEW_BYTES // len(TURN) + 5))
    assert isinstance(identity.identify_now(CHAT_PATH, parse(CHAT_PATH, chat("hi")), None), Prompt)
    first = await identity.identify_now(CHAT_PATH, parse(CHAT_PATH, long), None)()
    again = identity.identify_now(CHAT_PATH, parse(CHAT_PATH, long), None)
    assert list(again.chain(16)) == list(first.chain(16)) == exact_chain(long, 16)
    assert identity.statistics()["off_loop"] == 1


@pytest.mark.parametrize(("adapter", "salt"), [(None, "pepper"), ("sql", None), ("sql", "pepper")])
async def test_adapter_and_salt_change_the_hashes(
    identity: PromptIdentifier, adapter: str | None, salt: str | None
) -> None:
    body = chat(TURN * 4, **({"cache_salt": salt} if salt else {}))
    prompt = await ask(identity, CHAT_PATH, body, adapter)
    assert prompt is not None and list(prompt.chain(16)) == exact_chain(body, 16, adapter, salt)


async def test_completions_are_identified(identity: PromptIdentifier) -> None:
    text = TURN * 4 + "<|im_end|>" + TURN * 4
    ids = RENDERER.encode(text, True)
    for prompt_field, source, tokens in (
        (text, PromptSource.RENDERED, len(ids)),
        ([text], PromptSource.RENDERED, len(ids)),
        (["second", text], PromptSource.RENDERED, len(ids) + len(RENDERER.encode("second", True))),
        (ids, PromptSource.IDS, len(ids)),
        ([[1, 2, 3], ids], PromptSource.IDS, len(ids) + 3),
    ):
        prompt = await ask(identity, COMPLETIONS_PATH, completion(prompt_field))
        assert prompt is not None and prompt.source is source and prompt.tokens == tokens
        assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(ids), 16))
        assert prompt.multiple == (isinstance(prompt_field, list) and len(prompt_field) == 2)
        assert (prompt.own_tokens, prompt.shared_tokens) == (len(ids), 0)


async def test_of_several_prompts_the_reported_one_is_identified(identity: PromptIdentifier) -> None:
    first, second, last = [*range(60)], [*range(40), *range(100, 140)], [*range(50), 7, 7, 7]
    for stream, reported, shared in ((False, last, 50), (True, first, 0)):
        prompt = await ask(identity, COMPLETIONS_PATH, completion([first, second, last], stream=stream))
        assert prompt is not None and prompt.multiple and prompt.tokens == 60 + 80 + 53
        assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(reported), 16))
        assert (prompt.own_tokens, prompt.shared_tokens) == (len(reported), shared)


async def test_tokenizer_framing_is_for_completions(identifier, folders: dict[str, Path]) -> None:
    identity = identifier(Config(model_dir=str(folders["llama_first"])))
    renderer = ChatRenderer.load(folders["llama_first"])
    text = "the quick brown fox " * 10
    for fields, special in (({}, True), ({"add_special_tokens": False}, False)):
        prompt = await ask(identity, COMPLETIONS_PATH, completion(text, **fields))
        ids = renderer.encode(text, special)
        assert prompt is not None and (prompt.tokens, ids[0] == 1) == (len(ids), special)
        assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(ids), 16))
    prompt = await ask(identity, CHAT_PATH, chat("hi", add_special_tokens=True))
    assert prompt is not None and prompt.tokens == len(renderer.encode(renderer.render(json.loads(chat("hi"))), True))


async def test_forwarded_ids_are_used(identity: PromptIdentifier) -> None:
    body = chat(TURN, kv_transfer_params={"prompt_token_ids": list(range(40))})
    prompt = await ask(identity, CHAT_PATH, body)
    assert prompt is not None and prompt.source is PromptSource.IDS and prompt.tokens == 40
    large = chat("word " * (WHOLE_BYTES // 5), kv_transfer_params={"prompt_token_ids": list(range(40))})
    assert (await ask(identity, CHAT_PATH, large)).tokens == 40
    for path, body in ((MESSAGES_PATH, chat(TURN)), (RESPONSES_PATH, b'{"input": "x"}')):
        forwarded = {**json.loads(body), "kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}}
        assert (await ask(identity, path, json.dumps(forwarded).encode())).tokens == 3


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT_PATH, {"chat_template": "{{ messages }}"}),
        (CHAT_PATH, {"truncate_prompt_tokens": -1}),
        (CHAT_PATH, {"truncate_prompt_tokens": 0}),
        (CHAT_PATH, {"chat_template_kwargs": {"tokenize": True, "max_length": 5}}),
        (CHAT_PATH, {"chat_template_kwargs": {"chat_template": "{{ messages }}"}}),
        (CHAT_PATH, {"mm_processor_kwargs": {"a": 1}}),
        (CHAT_PATH, {"chat_template_kwargs": "odd"}),
        (CHAT_PATH, {"tools": "odd"}),
        (CHAT_PATH, {"tools": [{"type": "other"}]}),
        (
            CHAT_PATH,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]},
        ),
        (CHAT_PATH, {"messages": [5]}),
        (CHAT_PATH, {"messages": [{"content": "no role"}]}),
        (CHAT_PATH, {"continue_final_message": True}),
        (MESSAGES_PATH, {"messages": [{"role": "user", "content": [{"type": "image", "source": {"data": "aGk="}}]}]}),
        (MESSAGES_PATH, {"tools": [{"name": "f"}]}),
        (RESPONSES_PATH, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
        (RESPONSES_PATH, {"input": "a", "tools": [{"type": "web_search"}]}),
        (RESPONSES_PATH, {"input": "a", "truncation": "auto"}),
        (RESPONSES_PATH, {"input": "a", "truncation": None}),
    ],
)
async def test_a_prompt_that_cannot_be_rendered_is_identified_by_text(
    identity: PromptIdentifier, path: str, fields: dict
) -> None:
    prompt = await ask(identity, path, chat(TURN, **fields))
    assert prompt is not None and prompt.source is PromptSource.TEXT and not prompt.exact and prompt.tokens >= 1
    assert sum(identity.statistics()["text_reasons"].values()) == 1


async def test_a_body_without_a_prompt_has_no_identity(identity: PromptIdentifier) -> None:
    for path, body in (
        (CHAT_PATH, b'{"model": "m"}'),
        (COMPLETIONS_PATH, b'{"model": "m", "prompt": null}'),
        (COMPLETIONS_PATH, b'{"model": "m", "prompt": []}'),
        (COMPLETIONS_PATH, b'{"model": "m", "prompt": [["x"]]}'),
        (COMPLETIONS_PATH, b'{"model": "m", "prompt": [-1]}'),
        ("/v1/embeddings", b'{"model": "m", "input": "x"}'),
        (MESSAGES_PATH, b'{"model": "m", "messages": []}'),
        (RESPONSES_PATH, b'{"model": "m", "input": []}'),
        (RESPONSES_PATH, b'{"model": "m", "input": "x", "previous_response_id": "resp_1"}'),
    ):
        assert await ask(identity, path, body) is None


NAMES = st.sampled_from(["role", "content", "type", "text", "function", "tool_calls", "name", "arguments"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=list(HealthCheck))
@given(messages=st.lists(JSON, max_size=3), tools=JSON, kwargs=JSON, prompt=JSON)
async def test_no_exception_leaves_the_identity(
    identity: PromptIdentifier, messages: list, tools: object, kwargs: object, prompt: object
) -> None:
    body = {"model": "m", "messages": messages, "tools": tools, "chat_template_kwargs": kwargs}
    await ask(identity, CHAT_PATH, json.dumps(body).encode())
    await ask(identity, MESSAGES_PATH, json.dumps({**body, "system": prompt, "thinking": kwargs}).encode())
    if prompt is None or isinstance(prompt, (str, list)):
        await ask(identity, COMPLETIONS_PATH, json.dumps({"model": "m", "prompt": prompt}).encode())
        await ask(identity, RESPONSES_PATH, json.dumps({"input": prompt, "tools": tools, "reasoning": kwargs}).encode())


# The other APIs.

SYSTEM = "You review code, briefly and kindly, and say why. " * 3


def blocks(*contents: str) -> list[dict]:
    said = [[{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}] for text in contents]
    return [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(said)]


def items(*contents: str) -> list[dict]:
    parts = ("input_text", "output_text")
    said = [[{"type": parts[n % 2], "text": text}] for n, text in enumerate(contents)]
    return [
        {"type": "message", "role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(said)
    ]


async def test_one_conversation_in_three_apis_is_one_prompt(identity: PromptIdentifier) -> None:
    contents = [f"{TURN}{n}" for n in range(7)]
    body = json.loads(chat(*contents))
    as_chat = {**body, "messages": [{"role": "system", "content": SYSTEM}, *body["messages"]]}
    as_messages = {"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": SYSTEM}]}
    as_messages["messages"] = blocks(*contents)
    as_responses = {"model": "m", "instructions": SYSTEM, "input": items(*contents)}
    chains = []
    for path, prompt_request in ((CHAT_PATH, as_chat), (MESSAGES_PATH, as_messages), (RESPONSES_PATH, as_responses)):
        prompt = await ask(identity, path, json.dumps(prompt_request).encode())
        assert prompt is not None and prompt.source is PromptSource.RENDERED
        chains.append(list(prompt.chain(16)))
    assert chains[0] == chains[1] == chains[2] and len(chains[0]) > 10


@pytest.mark.parametrize("padding", [b"", b" " * WHOLE_BYTES])
async def test_an_empty_text_of_responses_is_a_turn(identity: PromptIdentifier, padding: bytes) -> None:
    prompt = await ask(identity, RESPONSES_PATH, b'{"model": "m", "input": ""' + padding + b"}")
    as_chat = await ask(identity, CHAT_PATH, b'{"model": "m", "messages": [{"role": "user", "content": ""}]}')
    assert prompt is not None and prompt.source is PromptSource.RENDERED
    assert as_chat is not None and prompt.tokens == as_chat.tokens


@pytest.mark.parametrize(
    ("path", "turns", "field"), [(MESSAGES_PATH, blocks, "messages"), (RESPONSES_PATH, items, "input")]
)
async def test_a_turn_costs_its_new_text_in_the_other_apis(
    identity: PromptIdentifier, path: str, turns, field: str
) -> None:
    contents = [f"{TURN * 20}{n}" for n in range(20)]
    first = json.dumps({"model": "m", "max_tokens": 9, field: turns(*contents[:-2])}).encode()
    assert (await ask(identity, path, first)).exact
    before = identity.statistics()["memo"]["new_tokens"]
    last = json.dumps({"model": "m", "max_tokens": 9, field: turns(*contents[:-2], "yes", "and?")}).encode()
    prompt = identity.identify_now(path, parse(path, last), None)
    assert isinstance(prompt, Prompt) and prompt.exact and prompt.tokens > 4_000
    assert identity.statistics()["memo"]["new_tokens"] - before < 100


async def test_responses_get_the_tokenizers_first_tokens(identifier, folders: dict[str, Path]) -> None:
    identity = identifier(Config(model_dir=str(folders["llama_first"])))
    renderer = ChatRenderer.load(folders["llama_first"])
    text = renderer.render(json.loads(chat("hi")))
    for path, body, special in (
        (CHAT_PATH, chat("hi"), False),
        (MESSAGES_PATH, chat("hi"), False),
        (RESPONSES_PATH, b'{"input": "hi"}', True),
    ):
        prompt = await ask(identity, path, body)
        assert prompt is not None and prompt.exact and prompt.tokens == len(renderer.encode(text, special))


async def test_a_stored_response_has_no_prompt_but_a_reason(identity: PromptIdentifier) -> None:
    parsed = parse(RESPONSES_PATH, b'{"input": "x", "previous_response_id": "resp_1"}')
    assert identity.identify_now(RESPONSES_PATH, parsed, None) is None
    assert identity.statistics()["text_reasons"] == {"the request sets previous_response_id": 1}


# Truncation, and templates in requests.


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"truncate_prompt_tokens": 100_000}, lambda ids: ids),
        ({"truncate_prompt_tokens": 40}, lambda ids: ids[:1] + ids[-39:]),
        ({"truncate_prompt_tokens": 40.0, "truncation_side": "left"}, lambda ids: ids[-40:]),
        ({"truncate_prompt_tokens": 40, "truncation_side": "right"}, lambda ids: ids[:40]),
        ({"truncate_prompt_tokens": 40, "add_special_tokens": False}, lambda ids: ids[-40:]),
        ({"truncate_prompt_tokens": -1}, lambda ids: ids),
    ],
)
async def test_truncated_prompts_are_identified_by_their_rest(
    identifier, folders: dict[str, Path], fields: dict, left
) -> None:
    identity = identifier(Config(model_dir=str(folders["llama_first"])))
    identity.sources.learn("m", None, None, None, 2_000)
    renderer = ChatRenderer.load(folders["llama_first"])
    ids = left(renderer.encode(TURN * 20, fields.get("add_special_tokens", True)))
    for _ in range(2):  # the remembered prompt equals the first one
        for prompt_request in (TURN * 20, [TURN * 20]):
            prompt = await ask(identity, COMPLETIONS_PATH, completion(prompt_request, **fields))
            assert prompt is not None and prompt.exact and prompt.tokens == len(ids)
            assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(ids), 16))


async def test_truncated_ids_and_chats_are_shortened(identity: PromptIdentifier) -> None:
    ids = list(range(10, 110))
    for side, left in ((None, ids[-40:]), ("left", ids[-40:]), ("right", ids[:40])):
        body = completion([ids, ids], truncate_prompt_tokens=40, **({"truncation_side": side} if side else {}))
        prompt = await ask(identity, COMPLETIONS_PATH, body)
        assert prompt is not None and prompt.tokens == 80
        assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(left), 16))
    rendered = RENDERER.encode(RENDERER.render(json.loads(chat(TURN * 20))), False)
    prompt = await ask(identity, CHAT_PATH, chat(TURN * 20, truncate_prompt_tokens=40))
    assert prompt is not None and prompt.tokens == 40
    assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(rendered[-40:]), 16))


async def test_a_prompt_beyond_a_small_window_goes_without_ids(identity: PromptIdentifier) -> None:
    body = json.dumps({"model": "m", "input": TURN * 20, "truncation": "auto"}).encode()
    identity.sources.learn("m", None, None, None, 100_000)
    assert (await ask(identity, RESPONSES_PATH, body)).exact
    identity.sources.learn("m", None, None, None, 100)
    identity.sources.learn("m", None, None, None, 100_000)
    prompt = await ask(identity, RESPONSES_PATH, body)
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert any("longer than the context window" in reason for reason in identity.statistics()["text_reasons"])


@pytest.mark.parametrize("prompt", [[5.0, 6, True] * 10, [[5.0, 6.0, 1.0] * 10]])
async def test_ids_may_be_floats_and_flags(identity: PromptIdentifier, prompt: list) -> None:
    found = await ask(identity, COMPLETIONS_PATH, completion(prompt))
    assert found is not None and found.tokens == 30
    assert list(found.chain(16)) == list(extend_chain(SEED, pack_tokens([5, 6, 1] * 10), 16))


@pytest.mark.parametrize("prompt", [[5.5], [5, "6"], [None], [1e300], [float(2**33)], [-1.0]])
async def test_a_value_that_is_not_an_id_is_refused(identity: PromptIdentifier, prompt: list) -> None:
    assert await ask(identity, COMPLETIONS_PATH, completion(prompt)) is None


async def test_trusted_templates_in_requests_are_run(identifier) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    for trusted, source in ((False, PromptSource.TEXT), (True, PromptSource.RENDERED)):
        config = Config(model_dir=str(MODEL_DIR), trust_request_chat_template=trusted)
        identity = identifier(config)
        for learned in (False, True):
            if learned:
                identity.sources.learn("m", None, None)
            body = chat(TURN, chat_template=template, seed=learned)
            parsed = parse(CHAT_PATH, body)
            assert trusted == callable(identity.identify_now(CHAT_PATH, parsed, None))  # rendered in a thread
            prompt = await ask(identity, CHAT_PATH, body)
            assert prompt is not None and prompt.source is source
            if trusted:
                assert prompt.tokens == len(RENDERER.encode(f"<user>{TURN}", False))


# Sources.


def test_configured_folders_take_precedence(tmp_path: Path, folders: dict[str, Path]) -> None:
    models = {"special": ModelConfig(dir=str(folders["plain"])), "broken": ModelConfig(dir=str(tmp_path))}
    identity = PromptIdentifier(Config(model_dir=str(MODEL_DIR), models=models), environ={})
    for model in ("special", "other", "broken"):
        identity.sources.learn(model, str(folders["strips"]), None)
    assert identity.describe("special") == f"rendered locally from {folders['plain']}"
    assert identity.describe("other") == f"rendered locally from {MODEL_DIR}"
    assert identity.describe("broken").startswith("text only: ")
    identity.sources.learn("broken", None, "http://127.0.0.1:1/tokenize")
    assert identity.describe("broken") == "worker's /tokenize"


async def test_a_tokenizer_may_lie_outside_the_model_folder(identifier, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    body = chat(TURN * 3)
    for config in (
        Config(model_dir=str(tmp_path), tokenizer=str(MODEL_DIR / "tokenizer.json")),
        Config(tokenizer=str(MODEL_DIR)),
        Config(tokenizer=str(MODEL_DIR / "tokenizer.json")),
    ):
        identity = identifier(config)
        prompt = await ask(identity, CHAT_PATH, body)
        assert prompt is not None and prompt.exact


async def test_folders_are_found_by_the_names_that_workers_report(identifier, tmp_path: Path) -> None:
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
        identity = identifier(Config(), environ=environ)
        identity.sources.learn(model, root, None)
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": TURN * 3}]}).encode()
        prompt = await ask(identity, CHAT_PATH, body)
        assert prompt is not None and prompt.exact and list(prompt.chain(16)) == exact_chain(body, 16)
        assert identity.describe(model) == f"rendered locally from {where}"
    identity = identifier(Config(), environ=environ)
    for root in ("org/other", "../../etc", "org/..", None, ""):
        identity.sources.learn(f"model {root}", root, None)
        assert identity.describe(f"model {root}").startswith("text only: ")


async def test_a_configured_template_applies_to_a_found_folder(identifier, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    for config, rendered in (
        (Config(), RENDERER.render(json.loads(chat(TURN)))),
        (Config(models={"m": ModelConfig(chat_template=str(template))}), TURN),
    ):
        identity = identifier(config)
        identity.sources.learn("m", str(MODEL_DIR), None)
        prompt = await ask(identity, CHAT_PATH, chat(TURN))
        assert prompt is not None and prompt.exact and prompt.tokens == len(RENDERER.encode(rendered, False))


async def test_a_broken_found_folder_falls_back(identifier, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    identity = identifier(Config())
    identity.sources.learn("m", str(tmp_path), None)
    prompt = await ask(identity, CHAT_PATH, chat(TURN))
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert identity.describe("m").startswith("text only: ") and "tokenizer.json" in identity.describe("m")


async def test_adapters_use_their_base_models_files(identifier, folders: dict[str, Path]) -> None:
    models = {"a": ModelConfig(dir=str(MODEL_DIR)), "b": ModelConfig(dir=str(folders["plain"]))}
    identity = identifier(Config(models=models))
    identity.sources.learn("lora", "/adapters/lora", None, "a")
    body = json.dumps({"model": "lora", "messages": [{"role": "user", "content": TURN * 3}]}).encode()
    prompt = await ask(identity, CHAT_PATH, body, "lora")
    assert prompt is not None and list(prompt.chain(16)) == exact_chain(body, 16, "lora")
    assert identity.describe("lora") == f"rendered locally from {MODEL_DIR}"


async def test_equal_requests_in_parallel_get_equal_prompts(identity: PromptIdentifier) -> None:
    bodies = [chat(TURN * 200, "ok", f"question {number}") for number in range(12)]
    prompts = await asyncio.gather(*(ask(identity, CHAT_PATH, body) for body in bodies))
    for body, prompt in zip(bodies, prompts, strict=True):
        assert list(prompt.chain(16)) == exact_chain(body, 16)


async def test_a_template_with_a_clock_is_rendered_each_time(identifier, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((MODEL_DIR / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}{{ messages[0].content }}")
    identity = identifier(Config(model_dir=str(tmp_path)))
    for _ in range(2):
        assert (await ask(identity, CHAT_PATH, chat(TURN))) is not None
    assert identity.statistics()["requests"]["hits"] == 0


async def test_memory_stays_within_the_configured_bytes(identifier) -> None:
    small = Config(model_dir=str(MODEL_DIR), residency=ResidencyConfig(memo_bytes=200_000))
    large = Config(model_dir=str(MODEL_DIR))
    held = []
    for config in (small, large):
        identity = identifier(config)
        for number in range(120):
            await ask(identity, CHAT_PATH, chat(f"{number} " + TURN * 40))
        statistics = identity.statistics()
        held.append(sum(statistics[part]["bytes"] for part in ("memo", "requests", "workers")))
    assert 0 < held[0] <= 200_000 < held[1]
