"""A worker's answers, read with and without the fast paths: the result must be the same."""

from hypothesis import given
from hypothesis import strategies as st

from backends.worker import Endpoint
from router.gateway.http.upstream.answer_end import AnswerFault
from router.gateway.http.upstream.connection import UpstreamConnection
from router.gateway.http.upstream.headers import response_to_client
from router.gateway.http.upstream.response_head import RepeatedResponse

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Transport:
    def __init__(self):
        self.written, self.aborted = b"", False

    def write(self, data):
        self.written += data

    def abort(self):
        self.aborted = True

    def is_closing(self):
        return self.aborted

    def get_write_buffer_size(self):
        return 0


class Pools:
    def __init__(self, flushes=True):
        self.kept, self.flushes, self.quiet = [], flushes, False
        self.outbox, self.head = self, RepeatedResponse()

    def repeated(self, endpoint):
        return self.head

    def add(self, writer):
        if self.flushes:
            writer.flush()

    def closed(self, connection):
        pass

    def put(self, connection):
        self.kept.append(connection)


class Reader:
    """Reads one response. With `splice`, it reads as an open event stream does."""

    def __init__(self, splice, flushes=True, begins=HEAD, to_head_request=False, passes=True):
        self.got, self.ended, self.lost, self.passed, self.passes = [], False, None, None, passes
        self.pools, self.transport = Pools(flushes), Transport()
        self.connection = UpstreamConnection(self.pools, Endpoint("http", "h", 1), 65_536)
        self.connection.connection_made(self.transport)
        self.connection.send(self, b"GET / HTTP/1.1\r\n\r\n", b"", to_head_request)
        if begins:
            self.connection.data_received(begins)
        if splice:
            self.connection.splice = self.got.append

    def response_began(self, response):
        if not self.passes:
            return
        head = response_to_client(response, b"x-request-id: 1\r\n", reframed=False, own_cors=False)
        self.passed = (head, response.status, response.length, response.keep_alive, response.bodiless)

    def response_read(self, data):
        self.got.append(data)

    def judge(self, data):
        return AnswerFault.NONE

    def response_ended(self):
        self.ended = True

    def worker_lost(self, reason, broke_http):
        self.lost = reason
        self.connection.release(reusable=False)

    def crashed(self):
        raise

    def seen(self):
        connection = self.connection
        return (
            self.passed,
            b"".join(self.got),
            b"".join(connection.pieces),
            self.ended,
            self.lost,
            connection.complete,
            connection.overrun,
            connection.at_boundary,
            connection.ends_event,
            connection.exact_end,
        )


def test_a_connection_is_pooled_only_after_its_request_was_sent():
    for flushes in (True, False):
        reader = Reader(splice=False, flushes=flushes)
        reader.connection.data_received(b"0\r\n\r\n")
        reader.connection.release(reusable=True)
        reader.connection.flush()
        assert (bool(reader.pools.kept), reader.transport.aborted) == (flushes, not flushes)
        assert reader.transport.written == (b"GET / HTTP/1.1\r\n\r\n" if flushes else b"")


def test_a_request_is_written_at_once_while_the_gateway_is_quiet():
    reader = Reader(splice=False, flushes=False)
    reader.pools.quiet = True
    reader.connection.send(reader, b"GET /quiet HTTP/1.1\r\n\r\n", b"", False)
    assert reader.transport.written == b"GET /quiet HTTP/1.1\r\n\r\n"
    reader.connection.flush()
    assert reader.transport.written == b"GET /quiet HTTP/1.1\r\n\r\n"


CONTENTS = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.integers(1, 2_100).map(lambda size: b"data: " + b"x" * size + b"\n\n"),
    st.sampled_from([b"\r\n", b"5\r\nabc\r\n", b"a\r\n\r\n", b"0\r\n\r\n", b'data: {"a":1}\n\n']),
)
SIZES = st.sampled_from([b"%x", b"%x", b"%x", b"%X", b"0%x", b"%x;name=value", b"%x "])


def frame(spelling, content):
    return (spelling % len(content)) + b"\r\n" + content + b"\r\n"


CHUNKS = st.lists(st.builds(frame, SIZES, CONTENTS), max_size=8)
ENDS = st.sampled_from([b"0\r\n\r\n", b"0\r\nx-trailer: 1\r\n\r\n", b"", b"0\r\n\r\nmore", b"zz\r\n\r\n"])


@given(CHUNKS, ENDS, st.lists(st.integers(1, 60), max_size=20), st.booleans())
def test_spliced_chunks_are_read_as_llhttp_reads_them(chunks, end, cuts, whole):
    quick, slow = Reader(splice=True), Reader(splice=False)
    reads = list(chunks)
    if not whole:
        raw, reads = b"".join(chunks), []
        for cut in cuts:
            reads.append(raw[:cut])
            raw = raw[cut:]
        reads.append(raw)
    for read in [*reads, end]:
        if read and quick.lost is None and not quick.ended:
            quick.connection.data_received(read)
            slow.connection.data_received(read)
            assert quick.seen() == slow.seen()


ANSWER = b"HTTP/1.1 200 OK\r\ndate: today\r\nContent-Length: %s\r\ncontent-type: application/json\r\n%s\r\n%s"
LENGTHS = st.sampled_from([b"3", b"3", b"03", b"10", b"0", b"4", b"3 ", b"+3", b"x", b"3, 3", b"1" * 19, b""])
LINES = st.sampled_from([b"", b"", b"", b"connection: close\r\n", b"connection: date\r\n", b"content-length: 3\r\n"])
BODIES = st.sampled_from([b"abc", b"abc", b"0123456789", b"", b"ab", b"abcd", b"abc\r\n", b"abcHTTP/1.1 200 OK\r\n"])
ANSWERS = st.tuples(LENGTHS, LINES, BODIES).map(lambda parts: ANSWER % parts)


@given(
    ANSWERS,
    ANSWERS | st.tuples(LENGTHS, st.just(b""), BODIES).map(lambda parts: ANSWER.replace(b"200", b"404") % parts),
    st.integers(0, 120),
    st.booleans(),
    st.sampled_from([b"", b"", b"\r\n", b"more"]),
    st.booleans(),
)
def test_a_repeated_head_is_read_as_llhttp_reads_it(first, second, cut, to_head_request, late, passes):
    quick, slow = (Reader(splice=False, begins=b"", to_head_request=to_head_request) for _ in range(2))
    known = Reader(splice=False, begins=first, passes=passes)
    quick.connection._repeated = known.pools.head
    for reader in (quick, slow):
        for read in (second[:cut], second[cut:], late):
            if read and reader.lost is None:
                reader.connection.data_received(read)
    assert quick.seen() == slow.seen()


def test_a_repeated_answer_is_read_without_a_parser():
    known = Reader(splice=False, begins=ANSWER % (b"3", b"", b"abc"))
    again = Reader(splice=False, begins=b"")
    again.connection._repeated = known.pools.head
    again.connection.data_received(ANSWER % (b"10", b"", b"0123456789"))
    assert again.ended and again.connection.exact_end and again.connection._parser is None
    assert again.passed[0] == (ANSWER % (b"10", b"x-request-id: 1\r\n", b""))
