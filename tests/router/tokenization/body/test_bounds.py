import asyncio
import gc
import json
from threading import Event

import pytest

from backends.vllm.render import ChatRenderer
from router.config.model import Config
from router.residency.prompt import Prompt, PromptSource
from router.tokenization.body.bounds import (
    INLINE_BRACKETS,
    INLINE_COMMAS,
    INLINE_IDS,
    INLINE_TURNS,
    MAX_BRACKETS,
    MAX_COMMAS,
    MAX_DECODED_BYTES,
    decoded_bytes,
    fits_inline,
)
from router.tokenization.body.intake import WHOLE_BYTES, parse
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH
from router.tokenization.identification_deadline import LIMIT_S, MAX_LIMIT_S, limit_s
from router.tokenization.prompt_identifier import PromptIdentifier
from tests.router.tokenization.test_prompt_identifier import MODEL_DIR, TURN, ask, chat, completion
from tests.router.tokenization.test_threads import Purse
from tests.support.waiting import eventually

MESSAGE = b'{"role":"user","content":"x"},'
LONG = "word " * 60_000


def many(element: bytes, times: int, path: str = CHAT_PATH) -> bytes:
    name = b"messages" if path == CHAT_PATH else b"prompt"
    return b'{"model":"m","%s":[%s]}' % (name, element * times + element.rstrip(b","))


@pytest.mark.parametrize(
    ("body", "inline"),
    [
        (chat("hi"), True),
        (chat("hi" * 100_000), True),
        (chat(*["hi, you" * 30] * INLINE_TURNS), True),
        (chat(*["hi, you" * 30] * (2 * INLINE_TURNS + 1)), False),
        (many(b"[],", INLINE_BRACKETS), True),
        (many(b"[],", 10 * INLINE_BRACKETS), False),
        (many(b"null,", INLINE_COMMAS + 1), False),
        (chat("hi", tools=["hello, you"] * (INLINE_COMMAS + 1)), False),
        (chat("hi", tools=[{"a": 1}] * 10 * INLINE_BRACKETS), False),
        (chat("hi" * WHOLE_BYTES), False),
    ],
)
def test_only_simple_bodies_are_rendered_on_the_loop(body: bytes, inline: bool) -> None:
    assert fits_inline(parse(CHAT_PATH, body)) is inline


@pytest.mark.parametrize(
    "body",
    [
        many(MESSAGE, MAX_BRACKETS),
        many(b"[],", MAX_BRACKETS),
        many(b'"a",', MAX_COMMAS, COMPLETIONS_PATH),
        many(b"1,", MAX_COMMAS, COMPLETIONS_PATH),
        b'{"model":"m","prompt":"%s"}' % (b"a" * MAX_DECODED_BYTES),
        b'{"model":"m","prompt":"%s\\u3042"}' % (b"a" * (MAX_DECODED_BYTES // 4)),
        b'{"model":"m","prompt":"%s\xe3\x81\x82"}' % (b"a" * (MAX_DECODED_BYTES // 4)),
    ],
)
async def test_a_body_too_large_to_decode_is_placed_by_its_size(identifier, body: bytes) -> None:
    path = CHAT_PATH if b"messages" in body else COMPLETIONS_PATH
    assert decoded_bytes(parse(path, body)) is None
    identity = identifier(Config(model_dir=str(MODEL_DIR)))
    assert await ask(identity, path, body) is None
    assert list(identity.statistics()["text_reasons"]) == [
        "the body is too large, or has too many elements, to be decoded"
    ]


def test_token_ids_are_read_on_the_loop() -> None:
    for count, inline in ((INLINE_IDS, True), (INLINE_IDS + 2, False)):
        assert fits_inline(parse(COMPLETIONS_PATH, completion([1] * count))) is inline


def test_brackets_are_bounded_by_the_size_of_the_body() -> None:
    assert decoded_bytes(parse(CHAT_PATH, many(b"[],", 60_000))) is None
    assert decoded_bytes(parse(CHAT_PATH, many(MESSAGE, 60_000))) is not None
    assert decoded_bytes(parse(CHAT_PATH, many(b"[],", 1_000))) is not None


def test_the_estimate_exceeds_the_objects_memory() -> None:
    assert decoded_bytes(parse(CHAT_PATH, many(MESSAGE, 10_000))) > 10_000 * 350
    for size in (100_000, 1_200_000):
        assert size < decoded_bytes(parse(COMPLETIONS_PATH, completion("a" * size))) < size + 1_000
        assert decoded_bytes(parse(COMPLETIONS_PATH, completion("\u3042" * size))) > 4 * size


async def test_decoded_bodies_are_charged_to_the_memory_budget(identity: PromptIdentifier) -> None:
    purse = Purse(MAX_DECODED_BYTES)
    identity.charge_to(purse)
    body = chat(LONG)
    assert (await ask(identity, CHAT_PATH, body)).exact
    assert purse.left == MAX_DECODED_BYTES
    purse.left = 10
    assert await ask(identity, CHAT_PATH, chat(LONG + "!")) is None
    assert (await ask(identity, CHAT_PATH, chat("small"))).exact
    assert purse.left == 10


async def test_a_prompt_longer_than_the_model_is_not_tokenised(identity: PromptIdentifier) -> None:
    identity.sources.learn("m", None, None, context_tokens=1_000)
    identity.sources.learn("m", None, None, context_tokens=500)
    assert await ask(identity, CHAT_PATH, chat(LONG)) is None
    assert (await ask(identity, CHAT_PATH, chat("word " * 3_000))).exact
    identity.sources.learn("m", None, None, context_tokens=100_000)
    assert (await ask(identity, CHAT_PATH, chat(LONG))).exact


async def test_a_prompt_longer_than_the_model_is_not_rendered(identity: PromptIdentifier, monkeypatch) -> None:
    identity.sources.learn("m", None, None, context_tokens=500)
    monkeypatch.setattr(ChatRenderer, "render", None)
    parts = [{"type": "text", "text": "word " * 30_000}] * 2
    for messages in (json.loads(chat(LONG))["messages"], [{"role": "user", "content": parts}]):
        assert await ask(identity, CHAT_PATH, chat(messages=messages)) is None
    assert list(identity.statistics()["text_reasons"]) == ["the prompt is longer than the model's context window"]


async def test_a_truncated_prompt_may_be_longer_than_the_model(identity: PromptIdentifier) -> None:
    identity.sources.learn("m", None, None, context_tokens=1_000)
    prompt = await ask(identity, COMPLETIONS_PATH, completion(LONG, truncate_prompt_tokens=500))
    assert prompt is not None and prompt.exact and prompt.tokens == 500


def test_time_limits_grow_with_the_body() -> None:
    assert limit_s(10_000) == pytest.approx(LIMIT_S, rel=0.2)
    assert LIMIT_S < limit_s(500_000) < limit_s(50_000_000) == MAX_LIMIT_S


@pytest.fixture
def gate():
    event = Event()
    yield event
    event.set()


async def test_a_late_prompt_is_placed_by_text_and_known_the_next_time(identifier, gate: Event, monkeypatch) -> None:
    identity = identifier(Config(model_dir=str(MODEL_DIR)), limit_s=lambda size_bytes: 0.01)
    local = identity.sources.of("m", None).local
    encode = local.renderer.encode
    monkeypatch.setattr(local.renderer, "encode", lambda *args: gate.wait() and encode(*args))
    body = chat(TURN * 200)
    prompt = await ask(identity, CHAT_PATH, body)
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert identity.statistics()["late"] == 1
    gate.set()
    await eventually(lambda: isinstance(identity.identify_now(CHAT_PATH, parse(CHAT_PATH, body), None), Prompt))
    assert identity.identify_now(CHAT_PATH, parse(CHAT_PATH, body), None).exact


async def test_a_late_large_body_is_placed_by_its_size(identifier, gate: Event) -> None:
    identity = identifier(Config(model_dir=str(MODEL_DIR)), limit_s=lambda size_bytes: 0.01)
    blocking = asyncio.create_task(ask(identity, CHAT_PATH, chat(LONG)))
    await asyncio.sleep(0)
    identity._threads._large._executor.submit(gate.wait)
    assert await ask(identity, CHAT_PATH, chat(LONG + "x")) is None
    assert "identification took too long" in identity.statistics()["text_reasons"]
    gate.set()
    await blocking


async def test_decoded_objects_are_dropped_while_a_prompt_waits(identity: PromptIdentifier) -> None:
    parsed = parse(CHAT_PATH, chat(TURN * 200))
    pending = identity.identify_now(CHAT_PATH, parsed, None)
    assert parsed.fields.messages is None
    prompt: Prompt | None = await pending()
    assert prompt is not None and prompt.exact


@pytest.mark.parametrize(
    "body",
    [
        chat(LONG, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": LONG}}]}]),
        chat(LONG, chat_template="x"),
        chat("\U0001f642" * 200_000),
        many(b"[],", 100_000),
    ],
    ids=["media", "template", "no place to divide", "many elements"],
)
async def test_decoded_bodies_are_freed_without_the_garbage_collector(identity: PromptIdentifier, body: bytes) -> None:
    await ask(identity, CHAT_PATH, body)
    gc.collect()
    gc.disable()
    try:
        await ask(identity, CHAT_PATH, body + b" ")
        assert gc.collect() < 10
    finally:
        gc.enable()


async def test_a_simple_body_of_many_shapes_is_still_exact(identity: PromptIdentifier) -> None:
    for contents in (["a"] * 2_000, ["hello, world {x} [y]"] * 800):
        body = chat(*contents)
        prompt = await ask(identity, CHAT_PATH, body)
        assert prompt is not None and prompt.exact
        assert json.loads(body)["model"] == "m"
