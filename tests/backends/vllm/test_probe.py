import asyncio
import json
import socket
from contextlib import asynccontextmanager

import pytest

from backends.vllm.control import WorkerClient
from backends.vllm.metrics import MAX_ENGINES, MAX_SAMPLES
from backends.vllm.probe import ProbeError, configured_sources, connectable, probe, quick_probe, read_metrics
from backends.worker import Endpoint, KvEventSource, ServedModel

GAUGES = (
    b'vllm:num_requests_running{engine="0"} 1\n'
    b'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="8"} 1\n'
)
SOURCE = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5558",
    "buffer_steps": 100,
    "hwm": 1,
    "topic": "kv",
}


def answer(body=b"", status="200 OK", headers=()):
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def as_json(value):
    return answer(json.dumps(value).encode())


def healthy(**changes):
    pages = {
        "/health": answer(),
        "/version": as_json({"version": "0.33.0", "extra": 1}),
        "/v1/models": as_json({"object": "list", "data": [{"id": "m", "root": "/models/m", "max_model_len": 4096}]}),
        "/metrics": answer(GAUGES),
        "/kv_event_sources": as_json({"0": SOURCE}),
    }
    return pages | {"/" + path.replace("__", "/"): page for path, page in changes.items()}


@asynccontextmanager
async def scripted(pages):
    """Start a server that answers each path with fixed bytes and then closes. None means no answer."""
    release = asyncio.Event()

    async def serve(reader, writer):
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
            page = pages.get(path, answer(status="404 Not Found"))
            if page is None:
                await release.wait()
            else:
                writer.write(page)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with WorkerClient() as client:
            yield client, Endpoint("http", "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        release.set()
        server.close()


async def probed(pages):
    async with scripted(pages) as (client, endpoint):
        return await probe(client, endpoint)


async def test_a_vllm_worker_is_probed():
    facts = await probed(healthy())
    assert facts.version == "0.33.0" and facts.notes == () and facts.ranks == 1 and not facts.sleeping
    assert facts.models == (ServedModel("m", "/models/m", None, 4096),)
    assert facts.caches[0].capacity_tokens == 128
    assert facts.event_sources == (KvEventSource(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", "kv", 100, 1),)


async def test_base_path_is_kept():
    pages = {f"/base{path}": page for path, page in healthy().items()}
    async with scripted(pages) as (client, endpoint):
        facts = await probe(client, Endpoint("http", endpoint.host, endpoint.port, "/base"))
    assert facts.version == "0.33.0"


async def test_an_older_worker_has_no_event_sources():
    pages = healthy()
    del pages["/kv_event_sources"]
    facts = await probed(pages)
    assert facts.event_sources == () and "kv_events.endpoint" in facts.notes[0]


async def test_events_off_names_the_flag():
    facts = await probed(healthy(kv_event_sources=as_json({})))
    assert "--kv-events-config" in facts.notes[0]


async def test_configured_events_are_not_asked_for():
    metrics = answer(GAUGES + GAUGES.replace(b'"0"', b'"1"'))
    async with scripted(healthy(kv_event_sources=None, metrics=metrics)) as (client, endpoint):
        facts = await probe(client, endpoint, events=KvEventSource(0, "tcp://*:7000", None, "t"))
    assert [source.endpoint for source in facts.event_sources] == ["tcp://127.0.0.1:7000", "tcp://127.0.0.1:7001"]


async def test_each_rank_has_a_source_and_unusable_ones_a_note():
    answers = {
        "5": SOURCE | {"endpoint": "tcp://10.0.0.9:41000", "replay_endpoint": None},
        "2": SOURCE,
        "3": SOURCE | {"publisher": "null"},
        "4": SOURCE | {"endpoint": "inproc://x"},
        "five": SOURCE,
    }
    facts = await probed(healthy(kv_event_sources=as_json(answers)))
    assert [(source.rank, source.endpoint) for source in facts.event_sources] == [
        (0, "tcp://127.0.0.1:5557"),
        (3, "tcp://10.0.0.9:41000"),
    ]
    assert len(facts.notes) == 3


async def test_one_rank_of_a_larger_deployment_is_rank_zero():
    facts = await probed(healthy(kv_event_sources=as_json({"3": SOURCE})))
    assert facts.event_sources[0].rank == 0


async def test_api_key_leaves_the_models_unknown():
    locked = answer(b'{"error":"Unauthorized"}', "401 Unauthorized")
    facts = await probed(healthy(v1__models=locked))
    assert facts.models == () and "API key" in facts.notes[0]


async def test_missing_metrics_and_version_are_notes():
    pages = healthy(kv_event_sources=answer(b"<html>"), metrics=answer(b"# nothing\n"))
    del pages["/version"]
    facts = await probed(pages)
    assert facts.version is None and facts.caches == {} and len(facts.notes) == 3


async def test_a_server_without_health_is_up_if_it_lists_models():
    pages = {"/v1/models": as_json({"data": [{"id": "m", "object": "model"}]})}
    async with scripted(pages) as (client, endpoint):
        await quick_probe(client, endpoint)
        facts = await probe(client, endpoint)
    assert facts.models == (ServedModel("m"),) and facts.version is None and facts.caches == {}


@pytest.mark.parametrize("models", [None, as_json({"data": []}), answer(status="404 Not Found")])
async def test_a_server_without_health_and_models_is_not_up(models):
    async with scripted({} if models is None else {"/v1/models": models}) as (client, endpoint):
        with pytest.raises(ProbeError, match="/health answered 404"):
            await quick_probe(client, endpoint)


@pytest.mark.parametrize(
    ("path", "page", "words"),
    [
        ("/health", answer(status="503 Service Unavailable"), "dead or still loading"),
        ("/health", answer(status="500 Oops"), "/health answered 500"),
        ("/health", answer(status="307 Go", headers=["location: http://elsewhere/"]), "redirects to http://elsewhere/"),
        ("/health", b"SSH-2.0-OpenSSH_9.2\r\n", "/health broke off"),
        ("/health", b"", "/health broke off"),
        ("/health", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "/health broke off"),
        ("/health", None, "no answer within"),
        ("/version", answer(b"<!doctype html><html>hello</html>"), "answered HTML"),
        ("/version", as_json({"version": 33}), "not vLLM's JSON"),
        ("/version", as_json([]), "not vLLM's JSON"),
        ("/version", answer(b"\xff\xfe\xff"), "not vLLM's JSON"),
        ("/version", answer(b"[" * 60_000), "not vLLM's JSON"),
        ("/v1/models", as_json({"data": {"id": "m"}}), "not vLLM's JSON"),
        ("/v1/models", as_json({"data": [{"id": 3}]}), "not vLLM's JSON"),
        ("/v1/models", answer(status="500 Oops"), "/v1/models answered 500"),
        ("/v1/models", answer(b"x" * 2_000_000), "more than"),
        ("/v1/models", as_json({"data": [{"id": "m"}] * 5_000}), "more than 4096 models"),
        ("/v1/models", answer(b'{"data":[' + b'{"id":"m"},' * 20_000 + b'{"id":"m"}]}'), "more than 4096 models"),
        ("/version", answer(b'{"version":"' + b"1" * 70_000 + b'"}'), "more than 65536 bytes"),
        ("/health", answer(b"x" * 70_000), "more than 65536 bytes"),
        ("/v1/models", answer(b"x", headers=["content-encoding: gzip"]), "compressed"),
    ],
)
async def test_an_odd_answer_is_an_error_with_a_reason(path, page, words):
    async with scripted(healthy() | {path: page}) as (client, endpoint):
        with pytest.raises(ProbeError, match=r"^\S.*\S$") as caught:
            await probe(client, endpoint, timeout_s=0.3)
    assert words in caught.value.reason
    assert len(caught.value.reason) < 400


async def test_a_closed_port_is_an_error_with_a_reason():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        async with WorkerClient() as client:
            with pytest.raises(ProbeError, match="cannot connect to 127"):
                await quick_probe(client, Endpoint("http", "127.0.0.1", held.getsockname()[1]))
            with pytest.raises(ProbeError):
                await quick_probe(client, Endpoint("http", "no such host", 80))


async def test_a_larger_metrics_page_names_the_setting():
    async with scripted(healthy(metrics=answer(b"x" * 2000))) as (client, endpoint):
        client.metrics_bytes = 1000
        with pytest.raises(ProbeError, match="larger than 1000 bytes"):
            await read_metrics(client, endpoint)


@pytest.mark.parametrize("samples", [MAX_SAMPLES + 1, MAX_ENGINES + 1])
async def test_a_page_of_too_many_samples_or_engines_is_refused(samples):
    name = "num_requests_running" if samples > MAX_SAMPLES else "cache_config_info"
    lines = (f'vllm:{name}{{engine="{n % 4096}",block_size="16",num_gpu_blocks="8"}} 1\n' for n in range(samples))
    async with scripted(healthy(metrics=answer("".join(lines).encode()))) as (client, endpoint):
        with pytest.raises(ProbeError, match=r"more than (8192 samples|512 engines)"):
            await read_metrics(client, endpoint)


async def test_too_many_event_sources_are_none():
    sources = {str(rank): {"endpoint": "tcp://*:5557"} for rank in range(MAX_ENGINES + 1)}
    facts = await probed(healthy() | {"/kv_event_sources": as_json(sources)})
    assert facts.event_sources == ()
    assert any("more than 512 ranks" in note for note in facts.notes)


async def test_a_long_version_is_cut():
    assert (await probed(healthy(version=as_json({"version": "1" * 60_000})))).version == "1" * 128


@pytest.mark.parametrize(
    ("address", "host", "expected"),
    [
        ("tcp://*:5557", "10.0.0.5", "tcp://10.0.0.5:5557"),
        ("tcp://0.0.0.0:5557", "worker", "tcp://worker:5557"),
        ("tcp://[::]:5557", "fe80::1", "tcp://[fe80::1]:5557"),
        ("tcp://:::5557", "fe80::1", "tcp://[fe80::1]:5557"),
        ("tcp://10.1.1.1:5557", "10.0.0.5", "tcp://10.1.1.1:5557"),
        ("ipc:///tmp/events", "10.0.0.5", "ipc:///tmp/events"),
    ],
)
def test_wildcard_addresses_get_the_workers_host(address, host, expected):
    assert connectable(address, Endpoint("http", host, 8000)) == expected


def test_configured_ranks_follow_on_the_next_ports():
    first = KvEventSource(0, "tcp://*:5557", "tcp://*:5600", "kv", 9)
    second = configured_sources(first, Endpoint("http", "::1", 80), 2)[1]
    assert second == KvEventSource(1, "tcp://[::1]:5558", "tcp://[::1]:5601", "kv", 9)
