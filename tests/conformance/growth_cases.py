"""Hostile inputs for the regular expressions and the hand-written scanners that read texts of clients and workers.

Every expression that is bound to a name of its module is tried with inputs that are made from itself. A row of
`PATTERNS` says how it is applied if a search would be too slow, how long its text is, and adds inputs. A loop over
bytes of clients or workers needs a row in `SCANNERS`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from backends.vllm.metrics import MAX_SAMPLES, STEP_BYTES, parse_metrics
from backends.vllm.tokenizer import SpecialToken
from backends.vllm.unrenderable import Unrenderable
from router.config.model import LimitsConfig
from router.errors import RequestError
from router.gateway.http.client.access_log import AccessLog
from router.gateway.http.client.chunked_body import MAX_LINE_BYTES
from router.gateway.http.client.cors import Cors
from router.gateway.http.client.request_framer import RequestFramer
from router.gateway.http.upstream.answer_end import ANSWER_ENDS
from router.gateway.http.upstream.response_head import parse_response_head
from router.gateway.layers.handover.cached_tokens import CachedTokens, with_cached_tokens
from router.gateway.layers.usage.usage_frame import Stamp, UsageFrame, plain_ending
from router.requests.answers.sse import FirstEvent, judge_event
from router.requests.answers.usage import find_usage
from router.requests.body_buffer_limit import BodyBufferLimit
from router.requests.pins import stored_response_id
from router.requests.request_head import RequestHead, split_lines
from router.requests.rewrites.json_splice import set_inner
from router.requests.rewrites.model_name import SEARCHED_BYTES
from router.requests.routes import RouteTable, forbidden
from router.tokenization.body.intake import WHOLE_BYTES, parse, parse_steps
from router.tokenization.body.large_json import BodySurvey
from router.tokenization.body.multipart import MAX_FIELD_BYTES, read_form
from router.tokenization.body.parsed_body import CHAT_PATH, as_int
from router.tokenization.local.long_text import encode_in_pieces
from router.tokenization.local.segmenter import Segmenter
from router.tokenization.remote_tokenizer import id_pieces
from router.tokenization.text import canonical_text

CHAT_END, RESPONSES_END = ANSWER_ENDS["/v1/chat/completions"], ANSWER_ENDS["/v1/responses"]
HEAD_BYTES = LimitsConfig().max_header_bytes
TEXT_BYTES = 1 << 20
TRUSTED = (
    "backends.simulated.", "router.admin.", "router.config.", "router.control.", "router.diagnosis.",
    "router.discovery.", "router.gateway.settings.", "router.placement.", "router.replicas.", "router.security.",
    "router.sidecar.defaults.",
)  # fmt: skip
"""Modules whose texts are an operator's, parsed once, or our own."""


@dataclass(frozen=True, slots=True)
class Row:
    """`method`: match, fullmatch or search (which covers finditer, findall, split and sub). `longest_bytes`: the
    longest text that the expression is applied to. `inputs` are functions of their size."""

    method: str = "search"
    inputs: tuple[Callable[[int], Any], ...] = ()
    longest_bytes: int = 64 * TEXT_BYTES


PATTERNS: dict[str, Row] = {
    "backends.vllm.handover.parameters._HOST": Row("fullmatch", longest_bytes=255),
    "backends.vllm.metrics._SAMPLE": Row(
        "search",
        (
            lambda size: "vllm:num_requests_running{" + 'a="' * (size // 3) + "\n",
            lambda size: "vllm:num_requests_running{" * (size // 26),
            lambda size: 'vllm:num_requests_running{a="' + "\\x" * (size // 2) + "\n",
        ),
    ),
    "backends.vllm.probe._TCP_PORT": Row("fullmatch", (lambda size: "tcp://" + ":1" * (size // 2) + "x",)),
    "router.cli.checks.examine._TCP": Row("fullmatch", (lambda size: "tcp://" + "]:1" * (size // 3) + "x",)),
    "router.requests.rewrites.model_name._MEMBER": Row(
        "search",
        longest_bytes=SEARCHED_BYTES,
        inputs=(
            lambda size: b'"model"' + b" " * size,
            lambda size: b'"model" ' * (size // 8),
            lambda size: b'"model":' * (size // 8),
        ),
    ),
    "router.requests.rewrites.model_name._STRING": Row(
        "match",
        longest_bytes=SEARCHED_BYTES,
        inputs=(lambda size: b'"' + b"\\x" * (size // 2), lambda size: b'"' + b"x\\" * (size // 2)),
    ),
    "router.requests.rewrites.model_name._QUERY": Row(
        "search", longest_bytes=HEAD_BYTES, inputs=(lambda size: "&model" * (size // 6),)
    ),
    "router.workers.settings._EVENT_ADDRESS": Row("fullmatch", (lambda size: "tcp://" + ":1" * (size // 2) + "x",)),
    "router.gateway.http.client.access_log._WITH_PORT": Row("fullmatch"),
    "router.gateway.http.client.chunked_body._SIZE": Row(
        "fullmatch",
        longest_bytes=MAX_LINE_BYTES,
        inputs=(
            lambda size: b"1;a" + b" " * size + b"\x00",
            lambda size: b'1;a="' + b"\\x" * (size // 2),
            lambda size: b"1" + b';a="x";b' * (size // 8) + b"=",
        ),
    ),
    "router.gateway.http.client.chunked_body._TRAILER": Row("fullmatch"),
    "router.requests.request_head._HEAD": Row(
        "fullmatch",
        longest_bytes=HEAD_BYTES,
        inputs=(
            lambda size: b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (size // 4) + b"\x00",
            lambda size: b"GET / HTTP/1.1\r\n" + b"a" * size,
            lambda size: b"GET /" + b"/" * size + b"\x00",
        ),
    ),
    "router.requests.request_head.LENGTH_LINE": Row(
        "search",
        (lambda size: b"\r\ncontent-length:1" + b" " * size, lambda size: b"\r\ncontent-length:" * (size // 17)),
    ),
    "router.requests.request_head._OTHER_VERSION": Row("match", (lambda size: b"GET " + b"/" * size + b" HTTP/",)),
    "router.requests.rewrites.json_splice._OBJECT": Row("match"),
    "router.requests.rewrites.json_splice._OPENING": Row("match"),
    "router.requests.layers.relearn.layer._VERSION": Row("match"),
    "router.requests.answers.sse._DATA": Row("search", (lambda size: b"data:" + b"\r" * size + b"x",)),
    "router.requests.answers.usage.USAGE": Row(
        "match",
        (lambda size: b'"usage":{' + b"{}" * (size // 2), lambda size: b'"usage":{' + b"{x" * (size // 2)),
    ),
    "router.gateway.layers.handover.cached_tokens._CACHED": Row(
        "search", (lambda size: b'"cached_tokens":' * (size // 16),)
    ),
    "router.gateway.layers.handover.cached_tokens._DETAILS": Row(
        "search", (lambda size: b'"prompt_tokens_details":{' * (size // 25),)
    ),
    "router.gateway.layers.handover.cached_tokens._READ": Row(
        "search", (lambda size: b'"cache_read_input_tokens":' * (size // 26),)
    ),
    "router.gateway.layers.handover.cached_tokens._INPUT": Row(
        "search", (lambda size: b'"input_tokens":' * (size // 15),)
    ),
    "router.gateway.layers.usage.usage_frame._STAMP": Row(
        "search",
        (
            lambda size: b',"system_fingerprint":"' * (size // 23),
            lambda size: b',"system_fingerprint":"' + b"\\x" * (size // 2),
        ),
    ),
    "router.gateway.http.upstream.response_head._TABBED_CODING": Row(
        "search",
        (
            lambda size: b"\r\ntransfer-encoding:" * (size // 20),
            lambda size: b"\r\ntransfer-encoding:chunked" + b" " * size,
        ),
    ),
    "router.tokenization.body.multipart._BOUNDARY": Row("fullmatch", longest_bytes=HEAD_BYTES),
    "router.tokenization.body.multipart._FIELD_NAME": Row("fullmatch", longest_bytes=HEAD_BYTES),
    "router.tokenization.body.multipart._KIND": Row("match", longest_bytes=HEAD_BYTES),
    "router.tokenization.local.word_memo._STRETCH": Row("search", (lambda size: "a'" * (size // 2),), 8_192),
    "router.tokenization.body.multipart._PARAMETER": Row("match", (lambda size: b';a="' + b"\\x" * (size // 2),)),
    "router.tokenization.local.long_text._WORD_END": Row("search", (lambda size: "a " * (size // 2),)),
    "router.hub.fetcher._NAME": Row("fullmatch"),
}


@dataclass(frozen=True, slots=True)
class Scan:
    """`build` makes an input of about the given size and returns the call that reads it. `largest_bytes`: the largest
    possible input, or a size that shows the growth."""

    build: Callable[[int], Callable[[], object]]
    largest_bytes: int = TEXT_BYTES


_START = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def _requests(make: Callable[[int], bytes], piece_bytes: int = 0) -> Callable[[int], Callable[[], object]]:
    """Feed the bytes of a connection to the framer, in one read or in pieces, until it refuses them."""

    def build(size: int) -> Callable[[], object]:
        raw = make(size)
        step = piece_bytes or max(1, len(raw))
        pieces = [raw[at : at + step] for at in range(0, len(raw), step)]

        def run() -> None:
            limits = LimitsConfig()
            framer = RequestFramer(limits, BodyBufferLimit(limits), lambda head: None)
            try:
                for piece in pieces:
                    framer.feed(piece)
                    while framer.next() is not None or framer.stopped:
                        pass
            except RequestError:
                pass

        return run

    return build


def _chunked(make: Callable[[int], bytes], piece_bytes: int = 0) -> Callable[[int], Callable[[], object]]:
    head = _START + b"Transfer-Encoding: chunked\r\n\r\n"
    return _requests(lambda size: head + make(size), piece_bytes)


def _on(read: Callable[[Any], object], make: Callable[[int], Any]) -> Callable[[int], Callable[[], object]]:
    def build(size: int) -> Callable[[], object]:
        made = make(size)
        return lambda: read(made)

    return build


def _read_at_once(make: Callable[[int], bytes]) -> Callable[[int], Callable[[], object]]:
    def read(body: bytes) -> None:
        with suppress(RequestError):
            canonical_text(CHAT_PATH, parse(CHAT_PATH, body).decoded())

    return _on(read, make)


def _read_in_steps(make: Callable[[int], bytes]) -> Callable[[int], Callable[[], object]]:
    def read(body: bytes) -> None:
        with suppress(RequestError):
            for _ in parse_steps(CHAT_PATH, body):
                pass

    return _on(read, make)


def _survey(body: bytes) -> None:
    for _ in BodySurvey().steps(body):
        pass


def _chat(content: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":%s}]}' % content


JSON: dict[str, Callable[[int], bytes]] = {
    "brackets": lambda size: b'{"model":"m","messages":[' + b"[]," * (size // 3) + b"0]}",
    "nested brackets": lambda size: b'{"model":"m","messages":' + b"[" * size,
    "brackets that close": lambda size: b'{"model":"m","messages":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
    "brackets in strings": lambda size: b'{"model":"m","messages":[' + b'"]",' * (size // 4) + b"0]}",
    "escapes": lambda size: _chat(b'"' + b"\\u00e4" * (size // 6) + b'"'),
    "quotes": lambda size: _chat(b'"' + b'\\"' * (size // 2) + b'"'),
    "backslashes": lambda size: _chat(b'"' + b"\\" * size),
    "white space": lambda size: b'{"model":' + b" " * size,
    "short messages": lambda size: (
        b'{"model":"m","messages":[%s{}]}' % (b'{"role":"user","content":"x"},' * (size // 30))
    ),
    "keys": lambda size: b'{"model":"m","messages":[{%s}]}' % b",".join(b'"%d":0' % at for at in range(size // 9)),
    "members": lambda size: b'{"model":"m",%s}' % b",".join(b'"%d":0' % at for at in range(size // 9)),
    "digits of a whole number": lambda size: b'{"model":"m","n":' + b"1" * size + b"}",
    "digits of a fraction": lambda size: b'{"model":"m","n":0.' + b"1" * size + b"}",
    "digits beside NaN": lambda size: b'{"model":"m","top_p":NaN,"n":0.' + b"1" * size + b"}",
}
"""Chat bodies by the part that they repeat."""


def _pieces(
    feed: Callable[[], Callable[[bytes], object]], before: bytes, piece: bytes
) -> Callable[[int], Callable[[], object]]:
    """Read a stream with an endless event in many small pieces."""

    def build(size: int) -> Callable[[], object]:
        def run() -> None:
            take = feed()
            take(before)
            for _ in range(size // len(piece)):
                take(piece)

        return run

    return build


def _head(**fields: bytes) -> RequestHead:
    named = {name.replace("_", "-").encode(): value for name, value in fields.items()}
    return RequestHead("OPTIONS", b"/", "/", "", 1, [], named, True, 0, False, False, False)


def _form(part: bytes, boundary: bytes = b"B") -> Callable[[int], Callable[[], object]]:
    content_type = b"multipart/form-data; boundary=" + boundary
    return _on(lambda body: _form_read(content_type, body), lambda size: part * (size // len(part)))


def _form_read(content_type: bytes, body: bytes) -> None:
    with suppress(RequestError):
        read_form(content_type, body)


def _in_pieces(text: str) -> None:
    with suppress(Unrenderable):
        encode_in_pieces(lambda piece: [len(word) for word in piece.split()], text)


_SEGMENTER = Segmenter(
    [
        SpecialToken(
            id=1, text="<|im_start|>", lstrip=True, rstrip=False, single_word=False, normalized=False, special=True
        ),
        SpecialToken(
            id=2, text="<|im_end|>", lstrip=False, rstrip=False, single_word=False, normalized=False, special=True
        ),
    ],
    normalizes=False,
)
_FILE = b"--" + b"-" * 70 + b"\r\ncontent-disposition:f;name=a;filename=b\r\n\r\n"
_STAMP = Stamp(b',"system_fingerprint":"fp"', b"}")
_ACCESS = AccessLog(True, ["0.0.0.0/0", "::/0"])
_CORS = Cors(("*",))

SCANNERS: dict[str, Scan] = {
    # request heads
    "one name in many lines": Scan(_on(split_lines, lambda size: [b"a:" + b"x" * 60] * (size // 62)), HEAD_BYTES),
    "a head in single bytes": Scan(_requests(lambda size: _START + b"X: " + b"x" * size, 1), 16_384),
    "half a head": Scan(_requests(lambda size: _START + b"a:\r\n" * (size // 4)), HEAD_BYTES),
    "empty lines": Scan(_requests(lambda size: b"\r\n" * (size // 2))),
    "empty lines in single bytes": Scan(_requests(lambda size: b"\r\n" * (size // 2), 1), 65_536),
    "short lines": Scan(_requests(lambda size: _START + b"a:\r\n" * (size // 4) + b"\r\n"), HEAD_BYTES),
    "connection options": Scan(
        _requests(lambda size: _START + b"Connection: " + b"a," * (size // 2) + b"\r\n\r\n"), HEAD_BYTES
    ),
    "transfer codings": Scan(
        _requests(lambda size: _START + b"Transfer-Encoding: " + b"a," * (size // 2) + b"\r\n\r\n"), HEAD_BYTES
    ),
    "pipelined requests": Scan(_requests(lambda size: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * (size // 27))),
    # bodies
    "one-byte chunks": Scan(_chunked(lambda size: b"1\r\nx\r\n" * (size // 6))),
    "chunks in single bytes": Scan(_chunked(lambda size: b"2\r\nxx\r\n" * (size // 7), 1), 262_144),
    "chunk extensions": Scan(_chunked(lambda size: (b"1" + b';a="b"' * 160 + b"\r\nx\r\n") * (size // 966))),
    "a long chunk extension": Scan(_chunked(lambda size: b"1;a=" + b"b" * size), 65_536),
    "trailers": Scan(_chunked(lambda size: b"0\r\n" + b"a:b\r\n" * (size // 5)), HEAD_BYTES),
    "a body in small pieces": Scan(
        _requests(lambda size: _START + b"Content-Length: %d\r\n\r\n" % size + b"x" * size, 512), 4 * TEXT_BYTES
    ),
    # paths, queries, headers
    "percent signs in a path": Scan(_on(forbidden, lambda size: "/" + "%2f." * (size // 4)), HEAD_BYTES),
    "slashes in a stored response's path": Scan(
        _on(RouteTable().find, lambda size: "/v1/responses/" + "a/" * (size // 2)), HEAD_BYTES
    ),
    "query fields": Scan(_on(parse_qs, lambda size: "model=&a&" * (size // 9)), HEAD_BYTES),
    "forwarded addresses": Scan(
        _on(
            lambda head: _ACCESS.client(head, "10.0.0.1"), lambda size: _head(x_forwarded_for=b"1.1.1.1," * (size // 8))
        ),
        HEAD_BYTES,
    ),
    "headers asked for by a preflight": Scan(
        _on(
            lambda head: _CORS.preflight(head, b"POST"),
            lambda size: _head(
                origin=b"x",
                access_control_request_method=b"POST",
                access_control_request_headers=b",".join(b"%x" % number for number in range(size // 5)),
            ),
        ),
        HEAD_BYTES,
    ),
    # forms
    "names of headers in a form": Scan(_form(b"--B\r\n" + (b"content-disposition:" * 400)[:8100] + b"\r\n\r\n\r\n")),
    "one long head in a form": Scan(
        _on(
            lambda body: _form_read(b"multipart/form-data; boundary=B", body),
            lambda size: b"--B\r\n" + b"content-disposition:" * (size // 20) + b"\r\n\r\n",
        )
    ),
    "parameters of a form": Scan(_form(b"--B\r\ncontent-disposition:" + b";a=b" * 2000 + b"\r\n\r\n\r\n")),
    "parts of a form": Scan(_form(b"--B\r\ncontent-disposition:f;name=a\r\n\r\n\r\n")),
    "half boundaries": Scan(
        _on(
            lambda body: _form_read(b"multipart/form-data; boundary=" + b"-" * 70, body),
            lambda size: _FILE + (b"\r\n" + b"-" * 71) * (size // 73),
        )
    ),
    "half escapes in a field": Scan(
        _on(
            lambda body: _form_read(b"multipart/form-data; boundary=B", body),
            lambda size: b"--B\r\ncontent-disposition:f;name=a\r\n\r\n" + b"\\u0" * (size // 3) + b"\r\n--B--",
        ),
        MAX_FIELD_BYTES // 2,
    ),
    "a content type of parameters": Scan(
        _on(lambda text: _form_read(text, b"x"), lambda size: b"multipart/form-data" + b';a="b"' * (size // 6)),
        HEAD_BYTES,
    ),
    # JSON
    **{f"{name}, read at once": Scan(_read_at_once(make), WHOLE_BYTES // 2) for name, make in JSON.items()},
    **{f"{name}, read in steps": Scan(_read_in_steps(make), 4 * TEXT_BYTES) for name, make in JSON.items()},
    "number as text": Scan(_on(as_int, lambda size: " " * size + "1" * 17 + " " * size + "x")),
    # splices
    "member to add": Scan(
        _on(
            lambda body: set_inner(body, "stream_options", "include_usage", b"true", None),
            lambda size: b'{"messages":"' + b"x" * size + b'"}',
        )
    ),
    "member named often": Scan(
        _on(
            lambda body: set_inner(body, "stream_options", "include_usage", b"true", None),
            lambda size: b"{" + b'"stream_options"                ' * (size // 32),
        )
    ),
    "member to replace": Scan(
        _on(
            lambda body: set_inner(body, "stream_options", "include_usage", b"true", {"include_usage": False}),
            lambda size: b'{"stream_options":{' + b'"include_usage"   ' * (size // 18) + b"}}",
        )
    ),
    "member of a long string": Scan(
        _on(
            lambda body: set_inner(body, "stream_options", "include_usage", b"true", {"include_usage": "x"}),
            lambda size: b'{"stream_options":{"include_usage":"' + b"\\x" * (size // 2) + b"}}",
        )
    ),
    # texts
    "special tokens": Scan(_on(_SEGMENTER.segments, lambda size: b"<|im_start|>" * (size // 12))),
    "halves of special tokens": Scan(_on(_SEGMENTER.segments, lambda size: b"<|im_" * (size // 5))),
    "white space between tokens": Scan(
        _on(_SEGMENTER.segments, lambda size: b"<|im_end|>" + b" " * size + b"<|im_start|>")
    ),
    "words to tokenise": Scan(_on(_in_pieces, lambda size: "word " * (size // 5))),
    "one word to tokenise": Scan(_on(_in_pieces, lambda size: "a" * size)),
    "white space to tokenise": Scan(_on(_in_pieces, lambda size: " " * size)),
    # answers
    "an answer's head": Scan(
        _on(
            lambda raw: parse_response_head(raw, 200, False),
            lambda size: b"HTTP/1.1 200 OK\r\n" + b"a: " + b"b\r\na:" * (size // 6) + b"\r\n\r\n",
        ),
        HEAD_BYTES,
    ),
    "a first event in small pieces": Scan(_pieces(lambda: FirstEvent().feed, b"data: ", b"x"), 65_536),
    "an introduction in small pieces": Scan(
        _pieces(lambda: FirstEvent().feed, b"event: response.created\ndata: ", b"x"), 524_288
    ),
    "comments before the first event": Scan(
        _on(lambda data: FirstEvent().feed(data), lambda size: b":\n\n" * (size // 3))
    ),
    "comments at the end of a stream": Scan(
        _on(lambda recent: CHAT_END.of_stream(recent, True), lambda size: b"data: x\n\n" + b":\n\n" * (size // 3))
    ),
    "names in the text of a stream": Scan(
        _on(lambda recent: RESPONSES_END.of_stream(recent, True), lambda size: b"data: " + b"response." * (size // 9))
    ),
    "lines of a first event": Scan(_on(judge_event, lambda size: b"data:\n" * (size // 6))),
    "names of usage": Scan(_on(lambda tail: find_usage([tail]), lambda size: b'"usage":{' * (size // 9)), 65_536),
    "objects in usage": Scan(
        _on(lambda tail: find_usage([tail]), lambda size: (b'"usage":{' + b"{}" * 100) * (size // 209)), 65_536
    ),
    "usage with the cached tokens of another worker": Scan(
        _on(lambda body: with_cached_tokens(body, 1), lambda size: (b'"usage":{' + b"{}" * 100) * (size // 209)), 65_536
    ),
    "an event with cached tokens in small pieces": Scan(
        _pieces(lambda: CachedTokens(lambda: 1).feed, b'data: {"usage":{"cached_tokens":1', b"x" * 8), 1_048_576
    ),
    "an event with usage in small pieces": Scan(
        _pieces(lambda: UsageFrame(_STAMP).feed, b'data: {"usage":', b"x" * 8), 1_048_576
    ),
    "events with usage": Scan(
        _on(lambda data: UsageFrame(_STAMP).feed(data), lambda size: b'data: {"usage":{}}\n\n' * (size // 20))
    ),
    "lines of an event with usage": Scan(
        _on(lambda data: UsageFrame(_STAMP).feed(data), lambda size: b'data: "usage"\n' * (size // 14) + b"\n")
    ),
    "the end of a stream": Scan(
        _on(lambda tail: plain_ending([tail], False), lambda size: b'"finish_reason"   \n\n' * (size // 20)), 65_536
    ),
    "a stored response's id": Scan(
        _on(lambda data: stored_response_id([data]), lambda size: b'"id":"resp_' * (size // 11))
    ),
    "a metrics page": Scan(
        _on(parse_metrics, lambda size: 'vllm:num_requests_running{engine="0"} 1\n' * (size // 40)),
        40 * MAX_SAMPLES,
    ),
    "labels of a metric": Scan(
        _on(parse_metrics, lambda size: "vllm:num_requests_running{" + 'a="b",' * (size // 6) + "} 1\n"), STEP_BYTES
    ),
    "long lines of a metrics page": Scan(_on(parse_metrics, lambda size: "x" * size + "\n"), 8 * TEXT_BYTES),
    "token ids of /tokenize": Scan(
        _on(lambda text: sum(map(len, id_pieces(text))), lambda size: b"[" + b"1," * (size // 2) + b"1]"),
        8 * TEXT_BYTES,
    ),
}
"""Scanners by the part that their input repeats."""
