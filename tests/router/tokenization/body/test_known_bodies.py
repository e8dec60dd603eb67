import json
import re
from random import Random
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from router.errors import RequestError
from router.tokenization.body import intake
from router.tokenization.body.fields import BodyFields
from router.tokenization.body.intake import parse
from router.tokenization.body.known_bodies import MOST_NEW_MESSAGES, STAND_IN, KnownBodies
from router.tokenization.body.parsed_body import CHAT_PATH, ParsedBody

TEXTS = [
    "", "Why?", '{"role": "user"}, {', '"messages":[{"role":"user"}],', "日本 \u0007 é", "}]},{\\", "x" * 60,
    "\ud83d\ude00",
]  # fmt: skip
PIECES = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b" ", b"\n", b"0", b"NaN", b"\xff", b"\xed\xa0\x80", b'"role"', b"null",
    b',"messages":[]', b',"foo":[{"role":"user"}]', b'},{"role":"user"}', str(STAND_IN).encode(), b'"m\\u0065ssages"',
]  # fmt: skip
FIELDS: list[tuple[str, Any]] = [
    ("model", "m"), ("model", 1), ("stream", True), ("stream", "?"), ("tools", [{"role": "user"}]), ("max_tokens", 5.0),
    ("cache_salt", "s"), ("foo", [{"role": "user"}, {"role": "user"}]), ("chat_template_kwargs", {"x": [1]}),
    ("continue_final_message", True), ("kv_transfer_params", {"prompt_token_ids": [1]}), ("temperature", 1e300),
]  # fmt: skip
CHANGED = {"decoded_part", "fields", "known", "searched", "shortened", "whole"}
ATTRIBUTES = [
    name
    for name in dir(ParsedBody)
    if not name.startswith("_") and name not in CHANGED and not callable(getattr(ParsedBody, name))
]


@pytest.fixture(autouse=True)
def short_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MIN_BODY_BYTES", 0)


def running(messages: Any, key: int = 0) -> list[int]:
    hashes = []
    for message in messages:
        key = xxh3_64_intdigest(json.dumps(message).encode(), key)
        hashes.append(key)
    return hashes


def read(body: bytes, known: KnownBodies) -> bool:
    whole, found = outcome(body), outcome(body, known)
    if isinstance(whole, str) or isinstance(found, str):
        assert whole == found
        return False
    assert [getattr(found, name) for name in ATTRIBUTES] == [getattr(whole, name) for name in ATTRIBUTES]
    messages = whole.fields.messages
    if not found.shortened:
        assert found.fields == whole.fields
        if found.searched and isinstance(messages, list) and len(messages) > 1:
            known.learn(body, running(messages))
        return False
    assert found.known is not None
    start = found.known.start
    assert start.key == running(messages)[start.messages - 1]
    for name in BodyFields.__struct_fields__:
        expected = [messages[0], *messages[start.messages :]] if name == "messages" else getattr(whole.fields, name)
        assert getattr(found.fields, name) == expected
    known.extend(body, found.known, [start.key, *running(messages[start.messages :], start.key)])
    assert found.decoded() == whole.fields
    found.read_whole()
    assert found.whole and found.fields == whole.fields
    return True


def outcome(body: bytes, known: KnownBodies | None = None) -> ParsedBody | str:
    try:
        return parse(CHAT_PATH, body, known)
    except RequestError as error:
        return f"{error.kind} {error}"


def a_message(rng: Random) -> Any:
    text = rng.choice(TEXTS)
    return rng.choice(
        [
            {"role": "user", "content": text},
            {"role": "user", "content": text},
            {"content": text, "role": "assistant"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"text": text}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
            {"role": "tool"},
        ]
    )  # fmt: skip


def a_body(rng: Random, messages: list[Any], fields: list[tuple[str, Any]]) -> bytes:
    """Return a body in one of several spellings; a field may occur twice."""
    compact, ascii_only, indent = rng.choice([(True, True, None), (False, False, None), (False, True, 1)])
    separators = (",", ":") if compact else None

    def said(value: Any) -> str:
        return json.dumps(value, separators=separators, ensure_ascii=ascii_only, indent=indent)

    members = [f"{said(name)}:{said(value)}" for name, value in fields]
    members.insert(rng.randrange(len(members) + 1), f'"messages": {said(messages)}')
    text = rng.choice(["{%s}", " {\n%s\n} "]) % rng.choice([",", " ,\t"]).join(members)
    return text.encode("utf-8", "surrogatepass")


def mutated(rng: Random, body: bytes) -> bytes:
    """Return `body` with one change: a piece in or out, a part twice, or another space."""
    first, second = sorted(rng.randrange(len(body) + 1) for _ in range(2))
    kind = rng.randrange(4)
    if kind == 0:
        return body[:first] + rng.choice(PIECES) + body[first:]
    if kind == 1:
        return body[:first] + body[first + rng.randrange(4) :]
    if kind == 2:
        return body[:second] + body[first:]
    return re.sub(rb"(?<=[\]}]),", rng.choice([b", ", b" ,", b"\n,"]), body, count=rng.choice([0, 1]))


@pytest.mark.parametrize("seed", range(6))
def test_any_body_is_read_as_without_known_starts(seed: int) -> None:
    rng, known = Random(seed), KnownBodies(1 << 20)
    found = 0
    for _ in range(60):
        messages = [a_message(rng) for _ in range(rng.randrange(1, 5))]
        fields = rng.sample(FIELDS, rng.randrange(4))
        style = rng.getrandbits(32)
        for _ in range(8):
            body = a_body(Random(style), messages, fields)
            found += read(body, known)
            found += read(mutated(rng, body), known)
            change = rng.randrange(6)
            if change == 0:
                messages[rng.randrange(len(messages))] = a_message(rng)
            elif change == 1:
                fields = rng.sample(FIELDS, rng.randrange(4))
            messages += [a_message(rng) for _ in range(rng.randrange(3))]
    assert found > 100


def chat(count: int, after: str = "}", before: str = "{") -> bytes:
    messages = [{"role": "user", "content": f"{n}"} for n in range(count)]
    return f'{before}"model":"m","messages":{json.dumps(messages)}{after}'.encode()


@pytest.mark.parametrize("new", range(1, MOST_NEW_MESSAGES + 3))
def test_the_last_messages_are_read_alone(new: int) -> None:
    known = KnownBodies(1 << 20)
    assert not read(chat(20), known)
    assert read(chat(20 + new), known) is (new <= MOST_NEW_MESSAGES)


@pytest.mark.parametrize(
    "body",
    [
        chat(6, ',"messages":[{"role":"user","content":"0"},{"role":"user"}]}'),
        chat(6, f',"messages":[{{"role":"user"}},{STAND_IN},{{"role":"user"}}]}}'),
        chat(6, f',"seed":{STAND_IN}}}'),
        chat(6, ',"x":NaN}'),
        chat(6, "},"),
        chat(6, "]}"),
        chat(6, ""),
        chat(6).replace(b'"0"', b'"00"'),
        chat(6).replace(b'"0"', b'"\\u0030"'),
        chat(6).replace(b'"m"', b'"n"'),
        chat(6, before="{ "),
    ],
)
def test_another_body_is_read_as_a_whole(body: bytes) -> None:
    known = KnownBodies(1 << 20)
    read(chat(5), known)
    assert not read(body, known)


def test_an_array_of_another_name_is_not_taken_for_the_messages() -> None:
    known, turns = KnownBodies(1 << 20), '{"role":"user","content":"a"},{"role":"user","content":"b"}'
    for name in ("foo", "messages"):
        other = {"foo": "messages", "messages": "foo"}[name]
        assert not read(f'{{"{name}":[{turns}],"{other}":[{turns}]}}'.encode(), known)
        body = f'{{"{name}":[{turns}],"{other}":[{turns},{{"role":"user","content":"c"}}]}}'.encode()
        read(body, known)


def test_memory_is_bounded() -> None:
    known = KnownBodies(2_000)
    for count in range(2, 40):
        read(chat(count), known)
    assert known.statistics()["bytes"] <= 2_000
    assert known.statistics()["entries"] == 5


def test_what_only_pythons_parser_reads_is_not_learnt() -> None:
    known = KnownBodies(1 << 20)
    read(chat(5, ',"x":NaN}'), known)
    assert known.statistics()["entries"] == 0


def test_a_prompt_that_is_dropped_or_released_leaves_nothing() -> None:
    known = KnownBodies(1 << 20)
    read(chat(5), known)
    for drop in (ParsedBody.drop_prompt, ParsedBody.release):
        parsed = parse(CHAT_PATH, chat(6), known)
        assert parsed.shortened
        drop(parsed)
        assert (parsed.shortened, parsed.whole, parsed.known, parsed.fields.messages) == (False, False, None, None)
