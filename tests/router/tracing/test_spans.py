import json

import pytest
from google.protobuf.json_format import ParseError

from router.tracing import attributes as names
from router.tracing.spans import CLIENT, SERVER, envelope, new_span_id, new_trace_id, span
from tests.support import otlp

TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "b7ad6b7169203331"


def sent(*written, resource=None):
    before, after = envelope(resource or {"service.name": "w"}, "1.2")
    return before + ",".join(written).encode() + after


def test_every_field_of_a_span_is_read_back():
    said = ",".join([names.REQUEST_MODEL.text("m"), names.STATUS.whole(200), names.FIRST_TOKEN_S.real(0.25)])
    (read,) = otlp.spans(sent(span(TRACE, SPAN, PARENT, '"chat m"', SERVER, 1.7e9, 1.7e9 + 2.5, said)))
    assert (read.trace_id.hex(), read.span_id.hex(), read.parent_span_id.hex()) == (TRACE, SPAN, PARENT)
    assert (read.name, read.kind, read.status.code) == ("chat m", 2, 0)
    assert (read.start_time_unix_nano, read.end_time_unix_nano) == (1_700_000_000 * 10**9, 1_700_000_002_500_000_000)
    assert otlp.values(read) == {
        "gen_ai.request.model": "m",
        "http.response.status_code": 200,
        "warmroute.time_to_first_token": 0.25,
    }


def test_a_failed_span_has_the_error_status_and_none_ends_before_it_starts():
    (read,) = otlp.spans(sent(span(TRACE, SPAN, "", '"attempt"', CLIENT, 10.0, 9.0, "", failed=True)))
    assert (read.status.code, read.parent_span_id, read.kind) == (2, b"", 3)
    assert read.end_time_unix_nano == read.start_time_unix_nano == 10 * 10**9


@pytest.mark.parametrize("text", ['say "hi" \\ now', "line\nbreak\x00\x1f", "é 日本 🦊", "lone \ud800 surrogate", ""])
def test_any_text_can_be_an_attribute(text):
    (read,) = otlp.spans(sent(span(TRACE, SPAN, "", names.quoted(text), SERVER, 1.0, 2.0, names.WORKER.text(text))))
    expected = text.replace("\ud800", "?")
    assert (read.name, otlp.values(read)["warmroute.worker"]) == (expected, expected)


def test_long_text_is_cut():
    assert len(json.loads(names.WORKER.text("x" * 10_000))["value"]["stringValue"]) == 256


def test_the_resource_describes_the_process():
    resource = {"service.name": "a", 'b"': '"'}
    read = otlp.read(sent(span(TRACE, SPAN, "", '"s"', SERVER, 1.0, 2.0, ""), resource=resource))
    assert otlp.values(read.resource_spans[0].resource) == resource
    scope = read.resource_spans[0].scope_spans[0].scope
    assert (scope.name, scope.version) == ("warmroute", "1.2")


def test_the_parser_refuses_what_is_no_otlp():
    with pytest.raises(ParseError):
        otlp.read(sent('{"spanNo": 1}'))


def test_ids_are_random_and_of_the_right_length():
    assert len({new_trace_id() for _ in range(100)}) == len({new_span_id() for _ in range(100)}) == 100
    assert {len(new_trace_id()) for _ in range(100)} == {32} and {len(new_span_id()) for _ in range(100)} == {16}


def test_names_are_those_of_the_conventions_or_our_own():
    table = [each.name for each in vars(names).values() if isinstance(each, names.Attribute)]
    assert len(set(table)) == len(table) > 20
    assert {name.split(".")[0] for name in table} == {"gen_ai", "http", "server", "error", "service", "warmroute"}
