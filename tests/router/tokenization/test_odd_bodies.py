"""Odd bodies have one verdict at every size: the one of Python's parser, with which vLLM reads them."""

import json
import math

import pytest

from router.errors import RequestError
from router.tokenization.body.encodings import STEP_BYTES, finished, utf8_steps
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH, MESSAGES_PATH, ParsedBody

SIZES = (1_000, 66_000, 300_000, 1_500_000, 9_000_000)
EMBEDDINGS = "/v1/embeddings"
LEAD = b'{"model":"m","messages":[{"role":"user","content":"%b"}],"max_tokens":7,'
DEEP = b"[" * 900 + b"]" * 900
TOO_DEEP = b"[" * 5_000 + b"]" * 5_000

MEMBERS = {
    "plain": b'"a":1',
    "nan": b'"temperature":NaN',
    "infinity": b'"a":[Infinity,-Infinity]',
    "nan in tools": b'"tools":[{"a":NaN}]',
    "nan beside arguments": b'"vllm_xargs":{"a":NaN}',
    "negative nan": b'"a":-NaN',
    "lower nan": b'"a":nan',
    "beyond a float": b'"a":1e999',
    "lone surrogate": rb'"a":"\ud800"',
    "lone low surrogate": rb'"user":"x\udc00x"',
    "name of a lone surrogate": rb'"\ud800":1',
    "pair": rb'"a":"\ud83d\ude00"',
    "raw surrogate": b'"a":"\xed\xa0\x80"',
    "raw surrogate in tools": b'"tools":["\xed\xa0\x80"]',
    "not utf-8": b'"a":"\xff"',
    "overlong": b'"a":"\xc0\xaf"',
    "control character": b'"a":"\x01"',
    "tab": b'"a":"\t"',
    "line end": b'"tools":["\n"]',
    "nul": b'"a":"\0"',
    "deep": b'"a":' + DEEP,
    "deep tools": b'"tools":' + DEEP,
    "too deep for this python": b'"a":' + TOO_DEEP,
    "4,000 digits": b'"a":' + b"7" * 4_000,
    "5,000 digits": b'"a":' + b"7" * 5_000,
    "5,000 digits of a limit": b'"n":' + b"7" * 5_000,
    "5,000 digits after a point": b'"a":0.' + b"7" * 5_000,
    "two names": b'"model":"other","model":"m2","priority":1,"priority":5',
    "names with escapes": rb'"mo\u0064el":"m2","prior\u0069ty":5,"cache\u005fsalt":"s"',
    "salt before nan": b'"cache_salt":"s","session_id":"t","priority":"5","a":NaN',
    "transfer before nan": b'"kv_transfer_params":{"a":1},"b":NaN',
    "transfer beside nan": b'"vllm_xargs":{"x":NaN,"kv_transfer_params":{"a":NaN}}',
    "transfer within nan": b'"sampling_params":{"extra_args":{"a":[NaN],"ec_transfer_params":1}}',
    "transfer of a surrogate": rb'"ec_transfer_p\u0061rams":{"a":"\ud800"}',
    "no number": b'"a":01',
    "no escape": rb'"a":"\x"',
    "comma at the end": b'"a":[1,]',
    "comment": b'"a":/**/1',
    "quote": b"'a':1",
    "floats": b'"tools":[' + b"1e308," * 150 + b"1]",
    "empty name": b'"":1',
    "many members": b",".join(b'"a%d":[]' % number for number in range(5_000)),
}
WHOLE = {
    "text after it": lambda body: body + b"x",
    "twice": lambda body: body + body,
    "no end": lambda body: body[:-1],
    "space around": lambda body: b" \r\n\t" + body + b" \r\n\t",
    "other space": lambda body: b"\x0b" + body,
    "a list": lambda body: b"[" + body + b"]",
    "two marks": lambda body: b"\xef\xbb\xbf\xef\xbb\xbf" + body,
    "half a character": lambda body: body.decode().encode("utf-16")[:-1],
    "utf-7": lambda body: body.decode().encode("utf-7"),
}
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def of_size(size: int, member: bytes) -> bytes:
    return LEAD % (b"x" * max(0, size - len(member) - len(LEAD))) + member + b"}"


def by_python(body: bytes) -> dict | None:
    """Return the object that Python's parser reads, with repr of its numbers comparable; None if it refuses."""
    try:
        found = json.loads(body, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def sent(path: str, body: bytes) -> tuple[ParsedBody, dict] | None:
    """Return what the gateway read and what the worker reads; None if either refuses the body."""
    try:
        parsed = parse(path, body)
    except RequestError:
        return None
    forwarded = parsed.body if parsed.converted else body
    found = by_python(forwarded or b"")
    return None if found is None else (parsed, found)


def transfer(found: dict) -> bool:
    """Return whether a connector would get parameters from the object."""
    sampling, arguments = found.get("sampling_params") or {}, found.get("vllm_xargs") or {}
    places = (found, arguments, sampling.get("extra_args") or {})
    return any(place.get(name) is not None for place in places for name in ("kv_transfer_params", "ec_transfer_params"))


def check(path: str, body: bytes) -> None:
    wanted, got = by_python(body), sent(path, body)
    assert (got is None) == (wanted is None)
    if got is None or wanted is None:
        return
    parsed, found = got
    assert found == wanted
    assert (parsed.model, parsed.cache_salt) == (found["model"], found.get("cache_salt"))
    if path != MESSAGES_PATH:
        assert parsed.priority == int(found.get("priority", 0))
        assert parsed.session_id == found.get("session_id")
    assert (parsed.transfer_field is not None) == transfer(found)
    assert parsed.max_tokens == 7


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_has_the_verdict_of_python_at_every_size(name: str, size: int) -> None:
    for path in (CHAT_PATH, MESSAGES_PATH, EMBEDDINGS) if size < SIZES[-1] else (CHAT_PATH,):
        check(path, of_size(size, MEMBERS[name]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", WHOLE)
def test_a_body_has_the_verdict_of_python_at_every_size(name: str, size: int) -> None:
    check(CHAT_PATH, WHOLE[name](of_size(size, b'"a":1')))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_is_read_at_every_size(encoding: str, size: int) -> None:
    for name in ("plain", "nan", "transfer beside nan", "salt before nan", "two names", "pair"):
        check(CHAT_PATH, of_size(size // 3, MEMBERS[name]).decode().encode(encoding))


@pytest.mark.parametrize("text", ["", "{}", '{"a":"é日🦊"}', "[" + "🦊" * STEP_BYTES + "]"])
@pytest.mark.parametrize("encoding", ["utf-8", *ENCODINGS])
def test_steps_convert_like_one_call(text: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = text.encode(encoding)
    for step in (3, 4, 1_001) if len(body) < 100 else (STEP_BYTES,):
        monkeypatch.setattr("router.tokenization.body.encodings.STEP_BYTES", step)
        assert finished(utf8_steps(body)) == text.encode()


def test_plain_utf8_is_not_copied() -> None:
    body = b'{"a":1}'
    assert finished(utf8_steps(body)) is body


def test_numbers_that_are_no_numbers_are_no_limits() -> None:
    for number in ("NaN", "Infinity", "1e999"):
        parsed = parse(CHAT_PATH, b'{"max_tokens":%b,"priority":%b}' % (number.encode(), number.encode()))
        assert (parsed.max_tokens, parsed.priority) == (None, 0)
        assert not math.isfinite(parsed.fields.max_tokens)
