import asyncio
import contextlib

import httpx
import pytest

from loadtest.bench import frames
from loadtest.bench.bodies import chats
from loadtest.bench.proxies.entrant import standins
from loadtest.bench.streams import Stream, Streams, StreamTally
from loadtest.load.http import Connection
from tests.support.waiting import eventually

BODY = {"model": "stand-in", "messages": [{"role": "user", "content": "word " * 200}]}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with standins(1, tmp_path_factory.mktemp("standin"), interval_s=0.005, kv_events=True) as place:
        yield place.worker_urls[0]


@pytest.fixture
async def streams(url):
    streams = Streams(url, url)
    yield streams
    with contextlib.suppress(RuntimeError):
        await streams.finish()


async def test_streams_are_held_run_and_end_with_every_token_counted(url, streams):
    await streams.begin(5, chats(url, {}, 500, endless=True))
    await eventually(lambda: streams.tally.tokens > 100)
    await streams.finish()
    assert (streams.tally.begun, streams.tally.ended, streams.tally.errors) == (5, 5, 0)


async def test_a_token_that_got_lost_is_noticed(url, streams):
    await streams.begin(5, chats(url, {}, 500, endless=True))
    await eventually(lambda: streams.tally.tokens > 10)
    streams.tally.tokens -= 1
    await streams.finish()
    assert "came through" in streams.tally.reasons[-1]


def test_cached_tokens_are_reported_as_vllm_would(url):
    first, second = (httpx.post(f"{url}/v1/chat/completions", json=BODY).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    prompt_tokens = second["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] == (prompt_tokens - 1) // 16 * 16


def test_each_port_is_a_worker_with_a_cache_of_its_own(tmp_path):
    with standins(2, tmp_path, kv_events=True) as place:
        urls = place.worker_urls
        for url in (urls[0], *urls):
            usage = httpx.post(f"{url}/v1/chat/completions", json=BODY).json()["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached == 0
        sources = [httpx.get(f"{url}/kv_event_sources").json()["0"]["endpoint"] for url in urls]
        assert sources[0] != sources[1]


def test_the_stand_in_names_its_event_sources_and_tokenises(url):
    assert httpx.get(f"{url}/kv_event_sources").json()["0"]["endpoint"].startswith("tcp://127.0.0.1:")
    count = httpx.post(f"{url}/tokenize", json=BODY).json()["count"]
    assert count == httpx.post(f"{url}/v1/chat/completions", json=BODY).json()["usage"]["prompt_tokens"]


def test_a_connection_that_speaks_something_else_is_closed(url):
    host, port = url.removeprefix("http://").split(":")

    async def closed():
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    asyncio.run(closed())
    assert httpx.get(f"{url}/health").status_code == 200


class Wire(asyncio.Transport):
    def write(self, data): ...


def reading(tally):
    """A connection on which a stream was asked for."""
    connection = Connection()
    connection.connection_made(Wire())
    connection.send(b"", Stream(tally))
    return connection


@pytest.mark.parametrize("size", [1, 3, 7, 50, 1000])
async def test_tokens_are_counted_however_the_bytes_are_cut(size):
    tally = StreamTally()
    client = reading(tally)
    whole = frames.FIRST + b"".join(frames.TOKENS[:5]) + frames.LAST
    for start in range(0, len(whole), size):
        client.data_received(whole[start : start + size])
    assert (tally.tokens, tally.begun, tally.ended, tally.errors) == (5, 1, 1, 0)


@pytest.mark.parametrize(("cut", "reason"), [(-5, "connection closed"), (-40, "connection closed")])
async def test_a_stream_without_its_end_is_an_error(cut, reason):
    tally = StreamTally()
    client = reading(tally)
    client.data_received((frames.FIRST + frames.TOKENS[0] + frames.LAST)[:cut])
    client.connection_lost(None)
    assert (tally.ended, tally.errors) == (0, 1)
    assert reason in tally.reasons[0]
