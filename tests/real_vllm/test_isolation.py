"""`auth.isolate_cache`: a key's prompts are never found cached by another key, and predictions equal reports."""

import json

import httpx
import pytest

from router.config.model import AuthConfig
from router.security.isolation import Isolation
from router.security.keys import KeyEntry, digest_of, new_key

SECRET = "Everything in this text is a secret of one tenant and of nobody else, so it says. " * 20
KEYS = {name: new_key() for name in ("alice", "bob", "carol")}
LINES = [KeyEntry(name, digest_of(key.encode())).line for name, key in KEYS.items()]


def bearer(name):
    return {"Authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(params=["key", "group"])
def mode(request):
    return request.param


@pytest.fixture
def keyed(plain, front, empty, mode):
    """A gateway with keys. With `group`, alice and carol are in one group; with `key`, each has a group of its own."""
    group = {"cache_group": "g"} if mode == "group" else {}
    tenants = {"red": {"keys": ["alice"], **group}, "blue": {"keys": ["carol"], **group}}
    empty(plain)
    running = front(
        plain,
        WARMROUTE_AUTH__API_KEYS=",".join(LINES),
        WARMROUTE_AUTH__ISOLATE_CACHE=mode,
        WARMROUTE_TENANTS=json.dumps(tenants),
    )
    running.begin_comparison()
    return running


def bodies(model, text):
    user = [{"role": "user", "content": text}]
    streamed = [{"role": "user", "content": "As a stream. " + text}]
    fixed = {"model": model, "temperature": 0}
    yield "/v1/chat/completions", {**fixed, "messages": user, "max_tokens": 4}
    yield "/v1/completions", {**fixed, "prompt": "As text. " + text, "max_tokens": 4}
    yield "/v1/completions", {**fixed, "prompt": [5, 6, 7] * 120, "max_tokens": 4}
    yield (
        "/v1/chat/completions",
        {**fixed, "messages": streamed, "max_tokens": 4, "stream": True} | {"stream_options": {"include_usage": True}},
    )
    yield "/v1/responses", {**fixed, "input": "A response. " + text, "max_output_tokens": 4}
    yield "/v1/messages", {**fixed, "messages": [{"role": "user", "content": "A message. " + text}], "max_tokens": 4}


@pytest.mark.any_version
def test_keys_share_nothing_and_predictions_hold(keyed, mode):
    for path, body in bodies(keyed.model, SECRET):
        for name in ("alice", "bob"):
            assert (keyed.ask(path, body, **bearer(name)).reported or 0) == 0, (path, name)
            assert keyed.ask(path, body, **bearer(name)).reported > 200, (path, name)
        shared = keyed.ask(path, body, **bearer("carol")).reported or 0
        assert (shared > 200) is (mode == "group"), path
    keyed.exact(30)


@pytest.mark.any_version
@pytest.mark.parametrize("mode", ["key"], indirect=True)
def test_no_spelling_of_a_salt_reaches_anothers_cache(keyed, plain):
    alices = Isolation(AuthConfig(api_keys=tuple(LINES)), {}).salts("alice").plain
    assert keyed.chat(SECRET, headers=bearer("alice")).reported == 0
    body = {"model": keyed.model, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}
    direct = httpx.post(f"{plain.url}/v1/chat/completions", json={**body, "cache_salt": alices}).json()
    assert direct["usage"]["prompt_tokens_details"]["cached_tokens"] > 300, "the salt that was sent"

    text = json.dumps(body)[:-1]
    tried = [f'"cache_salt":"{alices}"', f'"cache\\u005fsalt":"{alices}"']
    tried += [f'"cache_salt":"x","\\u0063ache_salt":"{alices}"', f'"cache_salt":null,"cache_salt":"{alices}"']
    headers = {**bearer("bob"), "content-type": "application/json"}
    found = []
    for member in tried:
        raw = f"{text},{member}}}".encode()
        answer = keyed.client.post("/v1/chat/completions", content=raw, headers=headers).json()
        found.append((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)
    assert found[0] == 0
    assert min(found[1:]) > 300, "all four are one salt of bob's own"
    raw = f"{text}}}".encode().decode().encode("utf-16")
    assert httpx.post(f"{plain.url}/v1/chat/completions", content=raw, headers=headers).status_code == 200
    answer = keyed.client.post("/v1/chat/completions", content=raw, headers=headers)
    cached = [(answer.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0]
    again = keyed.client.post("/v1/chat/completions", content=raw, headers=headers).json()
    cached.append(again["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0 < cached[1], "it goes on in UTF-8 with the salt of bob's key, not without one"


@pytest.mark.any_version
@pytest.mark.parametrize("mode", ["key"], indirect=True)
def test_a_clients_own_salt_splits_its_keys_cache(keyed):
    for salt in ("a", "b", None, "with@/\\"):
        fields = {} if salt is None else {"cache_salt": salt}
        assert keyed.chat(SECRET, headers=bearer("alice"), **fields).reported == 0
        assert keyed.chat(SECRET, headers=bearer("alice"), **fields).reported > 300
    keyed.exact(8)


def test_token_in_requests_are_kept_apart_too(vllm, front):
    running = front(vllm("--enable-scale-out"), WARMROUTE_AUTH__API_KEYS=",".join(LINES))
    body = {"token_ids": [5, 6, 7] * 120, "sampling_params": {"max_tokens": 4}}
    cached = [
        running.send("/inference/v1/generate", body, **bearer(name)).reported for name in ("alice", "alice", "bob")
    ]
    assert [(tokens or 0) > 300 for tokens in cached] == [False, True, False]
