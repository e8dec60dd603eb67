"""Reads of the traceparent header, by the W3C's rules."""

import pytest

from router.tracing.context import TraceContext, traced

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [(f"00-{TRACE}-{SPAN}-01", True), (f"00-{TRACE}-{SPAN}-00", False), (f"00-{TRACE}-{SPAN}-03", True),
     (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True)],
)  # fmt: skip
def test_a_valid_header_names_trace_and_span(header, sampled):
    assert traced(header.encode()) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [None, "", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
     f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-01-more", f"cc-{TRACE}-{SPAN}-01x", f"00_{TRACE}-{SPAN}-01",
     f"00-{TRACE}-{SPAN}-0x", f"00-{TRACE[1:]}é-{SPAN}-01", f"00-{TRACE}-{SPAN}01-"],
)  # fmt: skip
def test_an_invalid_header_is_ignored(header):
    assert traced(None if header is None else header.encode("latin-1")) is None
