"""A worker's chunks, read with and without the fast path: the result must be the same."""

from hypothesis import given
from hypothesis import strategies as st

from backends.worker import Endpoint
from router.gateway.http.upstream_connection import UpstreamConnection

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
        self.kept, self.flushes = [], flushes
        self.outbox = self

    def add(self, writer):
        if self.flushes:
            writer.flush()

    def closed(self, connection):
        pass

    def put(self, connection):
        self.kept.append(connection)


class Reader:
    """Reads one response. With `splice`, it reads as an open event stream does."""

    def __init__(self, splice, flushes=True):
        self.got, self.ended, self.lost = [], False, None
        self.pools, self.transport = Pools(flushes), Transport()
        self.connection = UpstreamConnection(self.pools, Endpoint("http", "h", 1), None, 65_536)
        self.connection.connection_made(self.transport)
        self.connection.send(self, b"GET / HTTP/1.1\r\n\r\n", b"", False)
        self.connection.data_received(HEAD)
        if splice:
            self.connection.splice = self.got.append

    def response_began(self, response):
        pass

    def response_read(self, data):
        self.got.append(data)

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
