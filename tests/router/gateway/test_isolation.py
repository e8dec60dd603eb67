"""`auth.isolate_cache`: which salt workers get, how it is added to the body, and where it is not added."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.model import AuthConfig
from router.errors import RequestError
from router.requests.rewrites.json_splice import salted
from router.security.isolation import Isolation
from router.security.keys import KeyEntry, digest_of, new_key
from tests.support.answers import END, answer_json, chunk
from tests.support.raw_client import bearer, key_line, post

ALICE, BOB, CAROL = new_key(), new_key(), new_key()
SALT = "0123abcd"
PLACED = (b"/v1/chat/completions", b"/v1/completions", b"/v1/messages", b"/v1/responses")
SALTED = (
    *PLACED, b"/v1/chat/completions/batch", b"/v1/embeddings", b"/pooling", b"/classify", b"/v1/score", b"/v2/rerank",
    b"/invocations", b"/generative_scoring", b"/inference/v1/generate", b"/v1/decisions", b"/v1/systemone",
)  # fmt: skip
UNSALTED = (b"/v2/embed", b"/cohere/v2/chat", b"/tokenize", b"/v1/messages/count_tokens", b"/v1/mine")
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"prompt":"hi","input":"hi"}'


AUTH = {"api_keys": [key_line("alice", ALICE), key_line("bob", BOB), key_line("carol", CAROL)]}


def salt_of(name, own=None):
    return Isolation(AuthConfig(api_keys=tuple(AUTH["api_keys"])), {}).salts(name).of(own)


def sent_salts(gate):
    return [json.loads(seen.body).get("cache_salt") for seen in gate.workers[0].requests]


@pytest.fixture
async def gate(rig):
    made = await rig(answer_json, auth=AUTH, extra_paths={"/v1/mine": ["POST"]})
    made.identified = []
    at_once = made.identity.identify_now

    def identify_now(path, parsed, adapter):
        made.identified.append(parsed.cache_salt)
        return at_once(path, parsed, adapter)

    made.identity.identify_now = identify_now
    return made


# the bodies that workers get


async def test_each_key_has_its_salt_and_prompts_are_identified_with_it(gate):
    client = await gate.connect()
    for path in PLACED:
        for key in (ALICE, BOB, ALICE):
            assert (await client.ask(post(path, BODY, bearer(key)))).status == 200
    expected = [salt_of(name) for name in ("alice", "bob", "alice")] * len(PLACED)
    assert sent_salts(gate) == expected
    assert gate.identified == expected
    assert gate.gateway.statistics()["rewrites"]["salted"] == len(expected)


async def test_a_previewed_body_has_the_salt_and_does_not_count(gate):
    previewed = await gate.gateway.preview(PLACED[0].decode(), {}, BODY, "alice")
    assert json.loads(previewed.body)["cache_salt"] == salt_of("alice")
    assert gate.gateway.statistics()["rewrites"]["salted"] == 0


async def test_only_the_salt_is_added_to_the_body(gate):
    await gate.ask(post(body=BODY, extra=bearer(ALICE)))
    (seen,) = gate.workers[0].requests
    assert seen.body == BODY[:-1] + f',"cache_salt":"{salt_of("alice")}"}}'.encode()
    assert seen.header(b"content-length") == b"%d" % len(seen.body)


@pytest.mark.parametrize("path", SALTED)
async def test_the_salt_is_sent_on_paths_that_read_it(gate, path):
    await gate.ask(post(path, BODY, bearer(BOB)))
    assert sent_salts(gate) == [salt_of("bob")]


@pytest.mark.parametrize("path", UNSALTED)
async def test_no_salt_is_sent_on_other_paths(gate, path):
    await gate.ask(post(path, BODY, bearer(BOB)))
    assert gate.workers[0].requests[0].body == BODY


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/embeddings"])
@pytest.mark.parametrize(
    "member",
    [
        b'"cache_salt":"own"',
        b'"cache\\u005fsalt":"own"',
        b'"cache_salt":"other","\\u0063ache_salt":"own"',
        b'"cache_salt":"own","x":NaN',
    ],
)
async def test_a_clients_salt_is_part_of_the_digest_in_any_spelling(gate, path, member):
    body = b'{"model":"m","messages":[],"input":"hi",' + member + b"}"
    assert (await gate.ask(post(path, body, bearer(ALICE)))).status == 200
    assert sent_salts(gate) == [salt_of("alice", "own")]
    assert gate.identified in ([], [salt_of("alice", "own")])


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/embeddings"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("size", [0, 300_000, 1_500_000])
async def test_a_body_in_any_encoding_is_salted(gate, path, encoding, size):
    body = BODY[:-1].decode() + ',"x":"' + "x" * size + '","y":NaN}'
    assert (await gate.ask(post(path, body.encode(encoding), bearer(ALICE)))).status == 200
    assert sent_salts(gate) == [salt_of("alice")]


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/embeddings"])
@pytest.mark.parametrize("value", [b'""', b"1", b"[]", b"{}", b"false"])
async def test_a_salt_that_vllm_refuses_is_refused(gate, path, value):
    body = b'{"model":"m","messages":[],"input":"hi","cache_salt":' + value + b"}"
    reply = await gate.ask(post(path, body, bearer(ALICE)))
    assert (reply.status, reply.code) == (400, "invalid_body")
    assert json.loads(reply.body)["error"]["param"] == "cache_salt"
    assert not gate.workers[0].requests


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/embeddings"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" + BODY + b"]",
        b'"' + b"x" * 20 + b'"',
        BODY + b"\0",
        BODY[:-1],
        BODY + BODY,
        BODY + b"}",
        b"no json {}",
    ],
)
async def test_a_body_that_cannot_be_salted_is_refused(gate, path, body):
    reply = await gate.ask(post(path, body, bearer(ALICE)))
    assert reply.status == 400
    assert reply.code in ("invalid_body", "invalid_json")
    assert not gate.workers[0].requests


UNUSUAL = [b"{}", b" {\r\n\t} \n", b'\xef\xbb\xbf{"input":"}"}', b'{"input":"{"}\r\n\r\n', b'{"input":"\\ud800"}']


@pytest.mark.parametrize("body", UNUSUAL)
async def test_unusual_json_objects_are_salted(gate, body):
    assert (await gate.ask(post(b"/v1/embeddings", body, bearer(ALICE)))).status == 200
    (sent,) = [json.loads(seen.body) for seen in gate.workers[0].requests]
    assert sent.pop("cache_salt") == salt_of("alice")
    assert sent == json.loads(body)


@pytest.mark.parametrize("size_bytes", [70_000, 400_000, 1_100_000])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/embeddings"])
async def test_large_bodies_are_salted(gate, path, size_bytes):
    body = BODY[:-1] + b',"padding":"' + b"x" * size_bytes + b'","cache\\u005fsalt":"own"}'
    assert (await gate.ask(post(path, body, bearer(ALICE)))).status == 200
    assert sent_salts(gate) == [salt_of("alice", "own")]


async def test_chunked_bodies_are_salted_and_get_a_length(gate):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\n%bTransfer-Encoding: chunked\r\n\r\n" % bearer(ALICE)
    body = chunk(BODY[:20]) + chunk(BODY[20:]) + END
    assert (await gate.ask(head + body)).status == 200
    (seen,) = gate.workers[0].requests
    assert sent_salts(gate) == [salt_of("alice")]
    assert seen.header(b"content-length") == b"%d" % len(seen.body)
    assert seen.header(b"transfer-encoding") is None


async def test_digest_headers_are_dropped_when_a_body_is_salted(gate):
    vouching = (
        b"Content-Digest: sha-256=:x:\r\nDigest: y\r\nContent-MD5: z\r\nSignature: s=:x:\r\nSignature-Input: s\r\n"
    )
    client = await gate.connect()
    for path in (b"/v1/chat/completions", b"/v1/mine", b"/v1/embeddings"):
        for _ in range(2):
            assert (await client.ask(post(path, BODY, bearer(ALICE) + vouching))).status == 200
    for seen in gate.workers[0].requests:
        kept = b"/v1/mine" in seen.lines[0]
        for name in (b"content-digest", b"digest", b"content-md5", b"signature", b"signature-input"):
            assert (seen.header(name) is not None) is kept
    assert sent_salts(gate) == [salt_of("alice")] * 2 + [None] * 2 + [salt_of("alice")] * 2


async def test_a_repeated_head_is_framed_for_each_body(gate):
    client = await gate.connect()
    for size in (1, 10, 100, 1_000, 10, 1):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * size}]}).encode()
        assert (await client.ask(post(body=body, extra=bearer(ALICE)))).status == 200
        seen = gate.workers[0].requests[-1]
        assert seen.header(b"content-length") == b"%d" % len(seen.body)
        assert json.loads(seen.body) == {**json.loads(body), "cache_salt": salt_of("alice")}


async def test_a_renamed_key_gets_another_salt_on_open_connections(gate):
    client = await gate.connect()
    await client.ask(post(body=BODY, extra=bearer(ALICE)))
    keys = gate.gateway._parts.keys
    keys._given = (KeyEntry("renamed", digest_of(ALICE.encode())),)
    keys.load()
    await client.ask(post(body=BODY, extra=bearer(ALICE)))
    assert sent_salts(gate) == [salt_of("alice"), salt_of("renamed")]


async def test_retries_carry_the_same_salt(rig):
    async def refuse(script):
        await answer_json(script, b"503 Service Unavailable")

    gate = await rig(refuse, answer_json, auth=AUTH)
    for _ in range(2):
        assert (await gate.ask(post(body=BODY, extra=bearer(ALICE)))).status == 200
    bodies = {seen.body for worker in gate.workers for seen in worker.requests}
    assert len(bodies) == 1
    assert gate.workers[0].requests


# the settings


async def test_without_keys_nothing_is_salted(rig):
    gate = await rig(answer_json)
    await gate.ask(post(body=BODY))
    assert gate.workers[0].requests[0].body == BODY


async def test_isolation_off_sends_bodies_unchanged(rig):
    gate = await rig(answer_json, auth={**AUTH, "isolate_cache": "off"})
    body = BODY[:-1] + b',"cache_salt":"own"}'
    await gate.ask(post(body=body, extra=bearer(ALICE)))
    assert gate.workers[0].requests[0].body == body


async def test_keys_of_one_group_share_a_salt(rig):
    tenants = {"red": {"keys": ["alice"], "cache_group": "g"}, "blue": {"keys": ["bob"], "cache_group": "g"}}
    gate = await rig(answer_json, auth={**AUTH, "isolate_cache": "group"}, tenants=tenants)
    for key in (ALICE, BOB, CAROL):
        await gate.ask(post(body=BODY, extra=bearer(key)))
    alice, bob, carol = sent_salts(gate)
    assert alice == bob != carol


async def test_explain_accepts_a_key_name(gate):
    await gate.gateway.preview("/v1/chat/completions", {}, BODY, "alice")
    await gate.gateway.preview("/v1/chat/completions", {}, BODY)
    assert gate.identified == [salt_of("alice"), None]
    with pytest.raises(RequestError, match="no API key is named 'mallory'"):
        await gate.gateway.preview("/v1/chat/completions", {}, BODY, "mallory")


# the splice

SPACE = st.text(alphabet=" \t\r\n", max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
MEMBERS = st.dictionaries(st.text(max_size=12) | st.just("cache_salt"), VALUES, max_size=5)


@given(MEMBERS, SPACE, SPACE, st.booleans(), st.sampled_from([None, 0, 2]))
def test_salting_adds_only_the_salt(members, before, after, ascii_only, indent):
    text = before + json.dumps(members, ensure_ascii=ascii_only, indent=indent) + after
    body = text.encode("utf-8", "surrogatepass")
    read, expected = json.loads(salted(body, SALT)), {**json.loads(body), "cache_salt": SALT}
    assert json.dumps(read, sort_keys=True) == json.dumps(expected, sort_keys=True)


@given(st.binary(max_size=60))
def test_salting_refuses_bodies_that_are_no_object(body):
    try:
        made = salted(body, SALT)
    except RequestError:
        return
    try:
        read = json.loads(made)
    except ValueError:
        return
    assert read["cache_salt"] == SALT
