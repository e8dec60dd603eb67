"""The two tables as a page: ``python -m tests.conformance.page`` writes docs/reference/http.md."""

from pathlib import Path

from router.gateway.http.chunked_body import MAX_LINE_BYTES
from router.gateway.http.request_head import MAX_HEADER_LINES
from tests.conformance import request_cases, response_cases
from tests.conformance.corpus import CODES
from tests.conformance.vectors import answers as answer_vectors
from tests.conformance.vectors import catalogue, deviations

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"

INTRODUCTION = f"""# HTTP on the public port

This page is made by `python -m tests.conformance.page` from the tables that the tests run over real sockets
(`tests/conformance/request_cases.py`, `response_cases.py`: there are the bytes); a test holds it to them.

HTTP/1.1 and HTTP/1.0 on both sides; HTTP/2 is not spoken. What two servers could read in two ways is refused and never
forwarded. A refusal has OpenAI's error shape (Anthropic's under `/v1/messages`) and closes the connection, unless it is
certain where the next request begins; what still comes is read and thrown away for a moment, so that the answer
arrives.

- A request goes to its worker as one HTTP/1.1 request; one with a body has one `Content-Length`, whatever its framing
  was. Its body (unless a rewrite is on) and its end-to-end headers are byte for byte what the client sent, in
  its order and case. Hop-by-hop headers and trailers end here.
- `Expect: 100-continue` is answered here, after the path and the announced length have been checked. Other upgrades
  than WebSocket on a path that has one are ignored, and so is one that comes with a body.
- A client that shuts down its sending side has left, as with vLLM's own server.
- Limits: `limits.max_header_bytes` for a request's head and for its trailers, {MAX_HEADER_LINES:,} header lines,
  {MAX_LINE_BYTES:,} bytes in a chunk's size line, `limits.max_body_bytes`, `limits.max_buffered_body_bytes`.
- An answer is passed on with the worker's framing. Interim answers (1xx) are not passed on. What cannot be read in one
  way only is a failure of the worker: before the first body byte (of a stream: the first event) another worker is
  asked, and where there is none the client gets a 5xx; behind it the client sees an error event, or a body that is
  visibly cut off.
- How far bytes are cut into packets changes nothing of this, with one exception: bytes behind the end of an answer that
  come along with it make it a failure; those that come later only cost the connection to the worker.
"""

VECTORS = f"""
## Generated requests and answers

`tests/conformance/test_vectors.py` sends {catalogue.TOTAL:,} requests, made by rule, through a gateway that forwards
every path. The rules spell `Transfer-Encoding` and `Content-Length` in many ways beside bodies that smuggle a second
request, break chunks, request lines, hosts and fields, and mix sound and unsound requests on one connection. A strict
reader of RFC 9112 reads the same bytes, and the worker gets nothing that the strict reader does not read.
{answer_vectors.TOTAL:,} answers of a broken worker are judged in the same way: no answer passes as whole that the
strict reader calls broken. These are all the differences between the gateway and the strict reader:
"""

HELD = """
## How this is held

`python -m pytest tests/conformance tests/properties` runs every row over sockets, whole and in pieces; cuts requests
and answers at random places; compares what arrives with what was sent; and mutates the rows, with a second, strict
reader beside the gateway's (`tests/properties/fuzz_*.py`). For hours instead of a minute:
`python -m pytest tests/properties/fuzz_requests.py tests/properties/fuzz_responses.py --hypothesis-profile=long`.
"""


def escaped(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def table(heads, rows):
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return "\n".join(lines + [f"| {' | '.join(map(escaped, row))} |" for row in rows])


def named(case):
    return case.name if not case.name.startswith("path ") else f"`{case.name.removeprefix('path ')}`"


def rfc(rule):
    return rule if " " in rule else f"9112 {rule}"


def answer(status, case):
    if case.code is not None and status == case.statuses[-1]:
        return f"{status} `{case.code}`"
    if status in CODES:
        return f"{status} `{CODES[status]}`"
    return "forwarded" if case.forwarded else f"{status}, answered here"


def answers(case):
    texts = [answer(status, case) for status in case.statuses]
    distinct = list(dict.fromkeys(texts))
    if len(texts) == 1:
        return texts[0]
    return f"{len(texts)} x {texts[0]}" if len(distinct) == 1 else ", then ".join(texts if len(texts) < 4 else distinct)


def request_row(case):
    return named(case), answers(case), "kept" if case.kept else "closed", rfc(case.rule), case.why


GETS = {"error": "an error: {status} `{code}`", "cut": "a part, visibly cut off", "event": "a part, then `{code}`"}


def response_row(case):
    gets = GETS.get(case.gets, "it").format(status=case.status, code=case.code)
    return named(case), gets, "used again" if case.pooled else "closed", rfc(case.rule), case.why


def deviation_rows():
    """All that the strict reader and the gateway do not read alike."""
    for title, table in (
        ("request refused", deviations.REQUESTS),
        ("answer refused", deviations.ANSWERS),
        ("answer passed on, and not understood by the strict reader", deviations.LOOSER),
    ):
        for name, deviation in table.items():
            yield title, name, f"{deviation.vectors}", deviation.why


def page():
    parts = [INTRODUCTION, "\n## Requests"]
    for title, cases in request_cases.SECTIONS.items():
        heads = ("a client sends", "answer", "its connection", "RFC", "why")
        parts.append(f"\n### {title}\n\n{table(heads, map(request_row, cases))}")
    parts.append("\n## Answers of workers")
    for title, cases in response_cases.SECTIONS.items():
        heads = ("a worker sends", "the client gets", "the worker's connection", "RFC", "why")
        parts.append(f"\n### {title} of an answer\n\n{table(heads, map(response_row, cases))}")
    rows = table(("difference", "name", "vectors", "why"), deviation_rows())
    return "\n".join(parts) + "\n" + VECTORS + "\n" + rows + "\n" + HELD


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
