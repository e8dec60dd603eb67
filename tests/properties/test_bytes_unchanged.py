"""Bodies and end-to-end headers arrive unchanged in both directions, whatever their content.

A stream that is asked for usage has one member more, and nothing else differs.
"""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.http.upstream.headers import HOP_BY_HOP
from router.gateway.layers.usage.layer import UsageObservation
from router.placement.request import Usage
from tests.properties.harness import CUTS, World, cut_up
from tests.properties.strict import read_message

# JSON as text, since its spelling must be kept: white space, forms of numbers, escapes, repeated names.

SPACE = st.sampled_from(["", "", "", " ", "\n", "\r\n\t", "  "])
NUMBER = st.sampled_from(
    ["0", "-0", "1.0", "1E+2", "1e-400", "1e400", "-0.0e0", "9007199254740993", "1" * 400, "0.1000000000000000055"]
) | st.integers(-(10**40), 10**40).map(str)
ESCAPED = [
    "\\u00e9", "\\u00E9", "é", "\\ud83d\\ude00", "😀", "\\/", "/", "\\u0000", "\\n", '\\"', "\u2028", "\x7f",
]  # fmt: skip
STRING = st.lists(st.sampled_from([*ESCAPED, "a", "usage", "data: ", "[DONE]"]), max_size=6).map(
    lambda parts: f'"{"".join(parts)}"'
)
NAME = st.sampled_from(
    ['"a"', '"b"', '"model_"', '"x-unknown"', '"\\u0061"', '""', '"vllm_xargs"', '"kv_transfer_params"']
)


@st.composite
def json_array(draw, items):
    return f"[{draw(SPACE)}" + ",".join(draw(SPACE) + item + draw(SPACE) for item in draw(items)) + "]"


@st.composite
def json_object(draw, members):
    texts = [f"{draw(SPACE)}{name}{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}" for name, value in draw(members)]
    return "{" + ",".join(texts) + "}"


JSON = st.recursive(
    NUMBER | STRING | st.sampled_from(["null", "true", "false", "{}", "[ ]"]),
    lambda inner: json_array(st.lists(inner, max_size=4)) | json_object(st.lists(st.tuples(NAME, inner), max_size=4)),
    max_leaves=12,
)
AUDIO = '{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}'
CONTENT = st.sampled_from([f"[{AUDIO}]", '"hi"', '[{"type":"text","text":"\\u00e9"},' + AUDIO + "]", "null"])
MESSAGES = CONTENT.map(lambda content: f'[ {{"role":"user","content":{content}}} ]')
PROMPT = st.sampled_from(['"once"', '["a", "b"]', "[1, 2,3]", "[[1],[2 , 3]]", "[ 99999999999999999999 ]", '""'])
EMBEDS = st.sampled_from(['"AAAA+/=="', '["AAAA","BBBB"]'])
MODEL = st.just(('"model"', '"m"'))
STREAM = st.sampled_from([('"stream"', "false"), ('"stream"', "true"), ('"user"', '"u"')])
UNKNOWN = st.lists(st.tuples(NAME, JSON), max_size=4)
SHAPES = {
    b"/v1/chat/completions": st.tuples(MODEL, st.tuples(st.just('"messages"'), MESSAGES), STREAM),
    b"/v1/completions": st.tuples(MODEL, st.tuples(st.just('"prompt"'), PROMPT), STREAM)
    | st.tuples(MODEL, st.tuples(st.just('"prompt_embeds"'), EMBEDS), STREAM),
    b"/v1/embeddings": st.tuples(MODEL, st.tuples(st.just('"input"'), PROMPT), STREAM),
    b"/pooling": st.tuples(MODEL, st.tuples(st.just('"data"'), JSON), STREAM),
}


@st.composite
def body(draw):
    path = draw(st.sampled_from(sorted(SHAPES)))
    members = draw(st.permutations([*draw(SHAPES[path]), *draw(UNKNOWN)]))
    text = draw(SPACE) + draw(json_object(st.just(members))) + draw(SPACE)
    return path, text.encode("utf-8", "surrogatepass")


OURS = (
    b"content-length", b"transfer-encoding", b"host", b"expect", b"x-request-id", b"content-type", b"x-vllm-priority",
)  # fmt: skip
NAMES = st.from_regex(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,10}", fullmatch=True).filter(
    lambda name: name.lower() not in HOP_BY_HOP and name.lower() not in OURS
) | st.sampled_from([b"Accept", b"accept", b"Cookie", b"AUTHORIZATION", b"X-Forwarded-For", b"traceparent", b"Via"])
VALUES = st.binary(max_size=20).map(lambda raw: re.sub(rb"[^\t\x20-\x7e\x80-\xff]", b"", raw))
LINES = st.lists(st.tuples(NAMES, st.sampled_from([b":", b": ", b":\t"]), VALUES).map(b"".join), max_size=12)
# The gateway's own header lines follow the ones that it passes on.
_ADDED = (
    b"X-Request-Id:",
    b"Via: 1.1 warmroute-",
    b"X-Forwarded-For: 192.0.2.1",
    b"X-Forwarded-Proto: http",
    b"X-Forwarded-Host: gw",
)


def passed_on(lines):
    lines = [line for line in lines if not line.lower().startswith((b"content-length:", b"host:"))]
    for _ in range(len(_ADDED)):
        if lines and lines[-1].startswith(_ADDED):
            lines.pop()
    return lines


@given(body(), LINES, CUTS)
def test_a_request_arrives_as_it_was_sent(request, lines, cuts):
    path, content = request
    head = b"".join(line + b"\r\n" for line in lines)
    raw = b"POST %s HTTP/1.1\r\nHost: gw\r\n%sContent-Length: %d\r\n\r\n%s" % (path, head, len(content), content)
    world = World(auth={"allow": ["transfer_params"]})
    client = world.client()
    client.send(*cut_up(raw, cuts))
    assert world.dials, client.got
    seen = read_message(world.dials[0].got, answer=False)
    assert seen.start == b"POST %s HTTP/1.1" % path
    assert seen.content == content
    assert seen.end == len(world.dials[0].got)
    assert passed_on(list(seen.lines)) == lines


QUESTION = re.compile(rb',?"stream_options":\{"include_usage":true\}(?=\}\s*\Z)')
ENDING = [b'data: {"choices":[{"finish_reason":"stop"}]}\n\n']


@pytest.mark.source_only  # the stand-in for identity makes prompts of known length
@given(body(), CUTS)
def test_a_request_that_is_asked_for_usage_has_only_the_question_more(request, cuts):
    path, content = request
    world = World(auth={"allow": ["transfer_params"]})
    (endpoint,) = world.fleet.endpoints
    (usage,) = [each for each in world.parts.features.all if isinstance(each, UsageObservation)]
    for api in SHAPES:
        usage.saw_plain(endpoint, api.decode(), ENDING, Usage())
    raw = b"POST %s HTTP/1.1\r\nHost: gw\r\nContent-Length: %d\r\n\r\n%s" % (path, len(content), content)
    world.client().send(*cut_up(raw, cuts))
    seen = read_message(world.dials[0].got, answer=False)
    asked = path in (b"/v1/chat/completions", b"/v1/completions") and json.loads(content).get("stream") is True
    assert (seen.content != content) == asked
    assert QUESTION.sub(b"", seen.content) == content


def test_the_second_stream_of_a_worker_is_asked_for_usage():
    content, world = b'{"model":"m","messages":[],"stream":true}', World()
    client = world.client()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    events = ENDING[0] + b"data: [DONE]\n\n"
    for asked in (False, True):
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: %d\r\n\r\n" % len(content), content
        )
        assert world.dials[0].got.endswith(b'{"include_usage":true}}') == asked
        world.dials[0].send(head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events))


MULTIPART = b'--%s\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--%s\r\n%s\r\n\r\n%s\r\n--%s--\r\n'


@given(st.binary(max_size=300), st.sampled_from([b"xyz", b"----WebKitFormBoundary7MA4YWxkTrZu0gW", b"'()+_,-./:=?"]))
def test_audio_arrives_as_it_was_sent(audio, boundary):
    disposition = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav'
    content = MULTIPART % (boundary, boundary, disposition, audio, boundary)
    head = b'POST /v1/audio/transcriptions HTTP/1.1\r\nHost: gw\r\nContent-Type: multipart/form-data; boundary="%s"\r\n'
    world = World()
    world.client().send(head % boundary + b"Content-Length: %d\r\n\r\n" % len(content) + content)
    assert read_message(world.dials[0].got, answer=False).content == content


FRAMINGS = st.sampled_from(["length", "chunked", "close"])
CHAT = b'POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 27\r\n\r\n{"model":"m","messages":[]}'


@given(st.binary(max_size=200) | JSON.map(lambda text: text.encode("utf-8", "surrogatepass")), LINES, FRAMINGS, CUTS)
def test_an_answer_arrives_as_it_was_sent(content, lines, framing, cuts):
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(line + b"\r\n" for line in lines)
    if framing == "length":
        raw = head + b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
    elif framing == "chunked":
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in cut_up(content, cuts))
        raw = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    else:
        raw = head + b"\r\n" + content
    world = World()
    client = world.client()
    client.send(CHAT)
    (worker,) = world.dials
    worker.send(*cut_up(raw, cuts))
    if framing == "close":
        worker.leave()
    seen = read_message(client.got, answer=True)
    assert (seen.content, seen.end, seen.whole) == (content, len(client.got), True)
    ours = (b"x-request-id:", b"content-length:", b"transfer-encoding:")
    assert [line for line in seen.lines if not line.lower().startswith(ours)] == lines
