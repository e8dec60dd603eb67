import json

import pytest

from router.errors import ErrorKind, RequestError
from router.requests.admission import check
from router.security.keys import new_key
from router.tokenization.body.intake import parse
from tests.support.answers import answer_json
from tests.support.raw_client import PLAIN, bearer, key_line, post

ALICE, OURS = new_key(), new_key()
PROMPT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
JSON_PATHS = (
    b"/v1/chat/completions", b"/v1/completions", b"/v1/messages", b"/v1/responses", b"/v1/chat/completions/batch",
    b"/v1/embeddings", b"/cohere/v2/chat", b"/inference/v1/generate", b"/tokenize", b"/v1/mine",
)  # fmt: skip
REFUSED = [
    b'"kv_transfer_params":{"do_remote_prefill":true}',
    b'"kv_transfer_params":{"prompt_token_ids":[1],"do_remote_decode":true}',
    b'"kv_transfer_params":{"do_remote_prefill":null}', b'"kv_transfer_params":"text"', b'"kv_transfer_params":[]',
    b'"kv_transfer_params":false', b'"kv_transfer_params":null,"kv_transfer_params":{"a":1}',
    b'"kv_transfer_params":{"prompt_token_ids":[1]},"kv\\u005ftransfer_params":{"a":1}',
    b'"\\u006bv_transfer_params":{"a":1}', b'"kv_transfer_params":{"a":NaN}', b'"x":NaN,"kv_transfer_params":{"a":1}',
    b'"ec_transfer_params":{}', b'"ec_transfer_params":{"ec_items":[]}', b'"ec_transfer_params":0',
    b'"vllm_xargs":{"kv_transfer_params":"text"}', b'"vllm_xargs":{"ec_transfer_params":[1]}',
]  # fmt: skip
ACCEPTED = [
    b'"kv_transfer_params":null,"ec_transfer_params":null', b'"kv_transfer_params":{"prompt_token_ids":[1,2,3]}',
    b'"kv_transfer_params":{}', b'"vllm_xargs":{"session_id":"s"}', b'"vllm_xargs":{"kv_transfer_params":null}',
    b'"metadata":{"kv_transfer_params":{"do_remote_prefill":true}}', b'"priority":0', b'"priority":null',
]  # fmt: skip


def body_with(member):
    return json.dumps({**PROMPT, "prompt": "hi", "input": "hi"}).encode()[:-1] + b"," + member + b"}"


SIZES = {"small": b"", "large": b"x" * 300_000, "very large": b"x" * 1_100_000}


@pytest.fixture(params=[text and b',"padding":"' + text + b'"' for text in SIZES.values()], ids=SIZES)
def padding(request):
    """A further member that makes the body large. Above 256 kB only small fields are decoded, above 1 MiB in steps."""
    return request.param


@pytest.fixture
async def gate(rig):
    return await rig(answer_json, extra_paths={"/v1/mine": ["POST"]})


@pytest.fixture
async def keyed(rig):
    auth = {"api_keys": [key_line("alice", ALICE), key_line("ours", OURS)], "isolate_cache": "off"}
    return await rig(answer_json, auth=auth, tenants={"us": {"keys": ["ours"], "trusted": True}})


@pytest.mark.parametrize("member", REFUSED)
async def test_transfer_fields_are_refused_on_every_path(gate, member, padding):
    client = await gate.connect()
    for path in JSON_PATHS:
        reply = await client.ask(post(path, body_with(member + padding)))
        assert (reply.status, reply.code) == (400, "transfer_params_not_allowed"), path
    assert not gate.workers[0].requests
    assert gate.recorded.requests == []


@pytest.mark.parametrize("member", ACCEPTED)
async def test_harmless_fields_are_forwarded_byte_for_byte(gate, member, padding):
    client = await gate.connect()
    for path in JSON_PATHS:
        assert (await client.ask(post(path, body_with(member + padding)))).status == 200
    assert {request.body for request in gate.workers[0].requests} == {body_with(member + padding)}


async def test_the_refusal_of_a_field_names_it_in_the_apis_format(gate):
    openai = await gate.ask(post(body=body_with(b'"ec_transfer_params":{}')))
    error = json.loads(openai.body)["error"]
    assert (error["param"], error["type"]) == ("ec_transfer_params", "invalid_request_error")
    anthropic = json.loads((await gate.ask(post(b"/v1/messages", body_with(b'"ec_transfer_params":{}')))).body)
    assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "invalid_request_error")


async def test_transfer_fields_in_extra_args_are_refused(gate):
    for inner in (b'{"kv_transfer_params":{"do_remote_prefill":true}}', b'{"ec_transfer_params":{"a":1}}'):
        body = b'{"token_ids":[1,2],"sampling_params":{"extra_args":%b}}' % inner
        assert (await gate.ask(post(b"/inference/v1/generate", body))).code == "transfer_params_not_allowed"
    body = b'{"token_ids":[1,2],"sampling_params":{"max_tokens":5,"extra_args":{"other":1}}}'
    assert (await gate.ask(post(b"/inference/v1/generate", body))).status == 200


def form(xargs, content_type=b"multipart/form-data; boundary=B", count=1):
    parts = b'--B\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
    parts += b'--B\r\ncontent-disposition: form-data; name="other"\r\n\r\nm\r\n' * (count - 1)
    parts += b'--B\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\xff"{\r\n'
    parts += b"--B\r\ncontent-disposition: form-data; name=vllm_xargs\r\n\r\n" + xargs + b"\r\n--B--\r\n"
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: gw\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (content_type, len(parts)) + parts


@pytest.mark.parametrize(
    "xargs",
    [
        b'{"kv_transfer_params":"text"}',
        b'{ "a":1, "ec_transfer_params" : [1]}',
        b'{"kv_tr\\u0061nsfer_params":[1]}',
        b'{"a":"' + b"\\u00e9" * 5_000 + b'"}',
        b'{"\\u006Bv\\u005fTransfer_params":1,"\\u006Bv\\u005ftransfer_params":1}',
    ],
)
async def test_transfer_fields_in_a_form_are_refused(gate, xargs):
    for count in (1, 100):
        reply = await gate.ask(form(xargs, count=count))
        assert (reply.status, reply.code) == (400, "transfer_params_not_allowed")
    assert not gate.workers[0].requests


async def test_forms_without_transfer_fields_are_forwarded(gate):
    for xargs in (b'{"session_id":"s"}', b'{"kv_transfer_params_":1}', b"kv_transfer_params"):
        assert (await gate.ask(form(xargs))).status == 200
    utf8 = b'multipart/form-data; charset="UTF-8"; boundary=B'
    assert (await gate.ask(form(b"{}", utf8))).status == 200


@pytest.mark.parametrize("charset", [b"utf-16", b'"utf-7"', b"utf-8; charset=utf-16", b"", b"cp037"])
async def test_a_form_in_a_charset_that_can_hide_fields_is_refused(gate, charset):
    reply = await gate.ask(form(b"{}", b"multipart/form-data; boundary=B; Charset=" + charset))
    assert (reply.status, reply.code) == (400, "invalid_body")


async def test_transfer_fields_in_a_form_are_forwarded_for_permitted_callers(rig):
    gate = await rig(answer_json, auth={"allow": ["transfer_params"]})
    assert (await gate.ask(form(b'{"kv_transfer_params":"text"}'))).status == 200


@pytest.mark.parametrize("value", [b"1", b"-1", b"1.0", b"true", b'"7"', b'"first"', b"1e3", b"[0]", b"NaN", b"0.5"])
async def test_a_priority_answers_400(gate, value):
    client = await gate.connect()
    for path in (b"/v1/chat/completions", b"/v1/embeddings", b"/v1/mine"):
        reply = await client.ask(post(path, body_with(b'"priority":' + value)))
        assert (reply.status, reply.code) == (400, "priority_not_allowed")
    assert not gate.workers[0].requests


async def test_rank_and_priority_headers_reach_no_worker(gate):
    client = await gate.connect()
    for _ in range(3):  # the second and third reuse the head prepared for the first
        await client.ask(post(extra=b"X-Data-Parallel-Rank: 1\r\nX-VLLM-Priority: -5\r\nX-Other: kept\r\n"))
    for seen in gate.workers[0].requests:
        assert seen.header(b"x-data-parallel-rank") is None
        assert seen.header(b"x-vllm-priority") is None
        assert seen.header(b"x-other") == b"kept"
    assert {request.priority for request in gate.recorded.requests} == {0}


@pytest.mark.parametrize("sent", ["priority", "rank", "transfer_params"])
async def test_auth_allow_permits_a_field_for_all_callers(rig, sent):
    gate = await rig(answer_json, auth={"allow": [sent]})
    headers = b"X-Data-Parallel-Rank: 1\r\nX-VLLM-Priority: -5\r\n"
    assert (await gate.ask(post(body=PLAIN, extra=headers))).status == 200
    (seen,) = gate.workers[0].requests
    assert (seen.header(b"x-vllm-priority") == b"-5") is (sent == "priority")
    assert (seen.header(b"x-data-parallel-rank") == b"1") is (sent == "rank")
    assert gate.recorded.requests[0].priority == (-5 if sent == "priority" else 0)
    statuses = [
        (await gate.ask(post(body=body_with(member)))).status
        for member in (b'"priority":3', b'"ec_transfer_params":{}', b'"kv_transfer_params":{"a":1}')
    ]
    expected = {"priority": [200, 400, 400], "rank": [400, 400, 400], "transfer_params": [400, 200, 200]}
    assert statuses == expected[sent]


async def test_restricted_fields_are_forwarded_for_a_trusted_tenant_only(keyed):
    client = await keyed.connect()
    headers = b"X-Data-Parallel-Rank: 1\r\nX-VLLM-Priority: -5\r\n"
    body = body_with(b'"kv_transfer_params":{"do_remote_prefill":true},"priority":2')
    assert (await client.ask(post(body=body, extra=bearer(ALICE)))).status == 400
    assert (await client.ask(post(body=body, extra=bearer(OURS) + headers))).status == 200
    assert (await client.ask(post(body=PLAIN, extra=bearer(ALICE) + headers))).status == 200
    trusted, other = keyed.workers[0].requests
    assert (trusted.header(b"x-vllm-priority"), trusted.header(b"x-data-parallel-rank")) == (b"-5", b"1")
    assert (other.header(b"x-vllm-priority"), other.header(b"x-data-parallel-rank")) == (None, None)
    assert [request.priority for request in keyed.recorded.requests] == [-5, 0]


async def test_the_priority_in_a_trusted_tenants_body_is_used(keyed):
    await keyed.ask(post(body=body_with(b'"priority":4'), extra=bearer(OURS)))
    assert keyed.recorded.requests[0].priority == 4


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1" * 400])
def test_priorities_that_only_python_parses_are_refused(value):
    parsed = parse("/v1/chat/completions", b'{"messages":[],"priority":' + value + b"}")
    with pytest.raises(RequestError) as refused:
        check(parsed, frozenset())
    assert refused.value.kind is ErrorKind.PRIORITY_NOT_ALLOWED
    check(parsed, frozenset({"priority"}))
