"""Except for answers to clients, any data from a worker is read or refused, at a cost linear in its size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from backends.vllm.control import ProbeError
from backends.vllm.events import WireError, parse_replay, split_frames
from backends.vllm.metrics import CACHE, HITS, QUERIES, RUNNING, SLEEP, STARTED, USAGE, WAITING, parse_metrics
from backends.vllm.probe import probe
from backends.worker import WorkerFacts, parse_endpoint
from router.gateway.layers.usage.usage_frame import UsageFrame, plain_ending
from router.requests.answers.sse import FirstEvent
from router.requests.answers.usage import find_usage, trim
from router.residency.event_feed import EventFeed
from router.residency.exact.blocks import BlockIndex
from tests.properties.fuzz_responses import EVENT_PARTS
from tests.properties.limits import grown, limited, linear_cpu
from tests.properties.mutations import MUTATIONS, budget, grown_budget, mutated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0), pytest.mark.usefixtures("bounded_memory")]

SAMPLES = [name.encode() for name in (RUNNING, WAITING, USAGE, QUERIES, HITS, SLEEP, CACHE, STARTED)]
PAGE_PARTS = st.sampled_from(
    [
        *SAMPLES, b'{engine="0"}', b'{engine="1",model_name="m"}', b"{", b"}", b'"', b"\\", b",", b"=", b" ", b"\t",
        b"\n", b"\r", b" 1.0\n", b" 1e400\n", b" -1\n", b" NaN\n", b"9" * 400, b'engine="99999"',
        b'block_size="16",num_gpu_blocks="100"', b'num_gpu_blocks="' + b"9" * 5_000 + b'"', b"# HELP x y\n", b"a",
        b"_", b"\xff", b"\x00", b"\xe2\x80\xa8",
    ]
)  # fmt: skip
PAGES = st.lists(PAGE_PARTS, max_size=30).map(b"".join)
ENDPOINT = parse_endpoint("http://worker:1")
ANSWERS = {
    "/health": b"",
    "/version": b'{"version":"0.33.0"}',
    "/v1/models": b'{"object":"list","data":[{"id":"m","root":"/m","parent":null,"max_model_len":4096}]}',
    "/metrics": b'vllm:num_requests_running{engine="0"} 1\n'
    b'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1\n',
    "/kv_event_sources": b'{"0":{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":null,"topic":"kv"}}',
}


class Answers:
    def __init__(self, answers):
        self.answers = answers
        self.metrics_bytes = 1 << 20

    async def get(self, endpoint, path, timeout_s, max_bytes=0):
        return self.answers[path]


def probed(answers):
    asking = probe(Answers(answers), ENDPOINT)
    try:
        for _ in range(10_000):  # it makes way for others between its steps
            asking.send(None)
    except StopIteration as end:
        return end.value
    except ProbeError:
        return None
    raise AssertionError("nothing here waits")


def usable(facts):
    assert isinstance(facts, WorkerFacts)
    assert all(isinstance(model.id, str) for model in facts.models)
    assert all(cache.block_size > 0 and cache.num_gpu_blocks >= 0 for cache in facts.caches.values())
    assert 1 <= facts.ranks <= 4_096


def test_vllms_answers_are_read_or_refused():
    usable(probed(ANSWERS))


@budget(10)
@given(st.sampled_from(sorted(ANSWERS)), MUTATIONS, st.binary(max_size=60))
@limited
def test_changed_answers_are_read_or_refused(path, mutations, noise):
    for said in (mutated(ANSWERS[path], mutations), noise, ANSWERS[path] + noise):
        facts = probed({**ANSWERS, path: said})
        assert facts is None or usable(facts) is None


JSON_PARTS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"0", b'"id"', b'{"id":"m"}', b'{"id":"m"},', b"null", b" ",
]  # fmt: skip


@grown_budget(1)
@given(
    st.sampled_from(["/version", "/v1/models", "/kv_event_sources"]),
    st.sampled_from([b"", b"[", b'{"data":[', b'{"version":"', b'{"0":{', b'{"0":{"endpoint":"tcp://']),
    st.lists(st.sampled_from(JSON_PARTS), min_size=1, max_size=5).map(b"".join),
    st.sampled_from([b"", b"]}", b'"}', b'"}}']),
)
@limited
def test_grown_answers_cost_linear_time(path, before, unit, behind):
    said = grown(before, unit, behind)
    with linear_cpu(len(said)):
        probed({**ANSWERS, path: said})


@budget(5)
@given(PAGES, MUTATIONS)
@limited
def test_changed_metrics_are_read(page, mutations):
    page = mutated(page, mutations).decode("utf-8", "replace")
    read = parse_metrics(page)
    assert all(load.running >= 0 and load.waiting >= 0 and 0 <= load.kv_usage <= 1 for load in read.loads)


@grown_budget(2)
@given(PAGES, st.lists(PAGE_PARTS, min_size=1, max_size=4).map(b"".join), PAGES)
@limited
def test_grown_metrics_cost_linear_time(before, unit, behind):
    page = grown(before, unit, behind).decode("utf-8", "replace")
    with linear_cpu(len(page)):
        parse_metrics(page)


INTEGERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 40)
HASHES = st.lists(INTEGERS | st.binary(max_size=40) | st.none(), max_size=6)
ODD = st.none() | st.booleans() | INTEGERS | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Odd"])},
    optional={
        "block_hashes": HASHES | ODD,
        "parent_block_hash": INTEGERS | ODD,
        "token_ids": st.lists(INTEGERS, max_size=20) | ODD,
        "block_size": INTEGERS | ODD,
        "medium": st.sampled_from(["GPU", "CPU", "x", None]) | ODD,
        "lora_id": ODD,
        "lora_name": ODD,
        "extra_keys": st.lists(st.lists(ODD, max_size=3) | st.none(), max_size=6) | ODD,
        "group_idx": INTEGERS | ODD,
        "kv_cache_spec_kind": ODD,
        "kv_cache_spec_sliding_window": INTEGERS | ODD,
        "locality": ODD,
        "session_id": ODD,
        "lookahead_token_ids": ODD,
        "origin": st.sampled_from(["REUSED", "x"]) | ODD,
    },
)
SOUND = st.builds(
    lambda first, count, size: {
        "type": "BlockStored",
        "block_hashes": list(range(first, first + count)),
        "parent_block_hash": None,
        "token_ids": list(range(count * size)),
        "block_size": size,
    },
    st.integers(0, 20),
    st.integers(0, 4),
    st.just(16),
)
BATCHES = st.lists(st.lists(EVENTS | SOUND, max_size=5), min_size=1, max_size=4)
FRAMES = st.lists(st.binary(max_size=9) | st.just(b"\xff" * 8), max_size=5)


@budget(5)
@given(BATCHES, MUTATIONS, st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 4), min_size=4, max_size=4))
@limited
def test_cache_events_are_read_or_refused(batches, mutations, numbers):
    view = EventFeed(BlockIndex(), 16, 100)
    view.link_up()
    for place, (events, number) in enumerate(zip(batches, numbers, strict=False)):
        payload = msgpack.encode([1.5, events, 0])
        view.ingest(number if place % 2 else place, payload if place else mutated(payload, mutations), place == 3)
    view.replay_ended(True)


@given(FRAMES)
@limited
def test_any_frames_are_read_or_refused(frames):
    for read in (split_frames, parse_replay):
        try:
            read(frames)
        except WireError:
            pass


@grown_budget(1)
@given(
    st.sampled_from([b"\x93\xcb", b"", b"\x93\x01\xdd\xff\xff\xff\xff"]),
    st.binary(min_size=1, max_size=8),
    st.binary(max_size=4),
)
@limited
def test_grown_payloads_cost_linear_time(before, unit, behind):
    view = EventFeed(BlockIndex(), 16, 100)
    payload = grown(before, unit, behind)
    with linear_cpu(len(payload), len(payload) // 4):  # each byte may be an invalid event
        view.ingest(0, payload, False)


def test_a_grown_payload_of_valid_blocks_costs_linear_time():
    tokens = list(range(16)) * 2_000
    event = {
        "type": "BlockStored",
        "block_hashes": list(range(2_000)),
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": 16,
    }
    payload = msgpack.encode([1.5, [event], 0])
    with linear_cpu(len(payload)):
        EventFeed(BlockIndex(), 16, 100).ingest(0, payload, False)


def in_reads(raw, size):
    return [raw[start : start + size] for start in range(0, len(raw), size)]


@grown_budget(0.2)
@given(EVENT_PARTS, st.lists(EVENT_PARTS, min_size=1, max_size=4).map(b"".join), EVENT_PARTS)
@limited
def test_grown_streams_cost_linear_time(before, unit, behind):
    """Read a stream as the relay does: its first event, its usage frame, its tail."""
    raw = grown(before, unit, behind)
    events = sum(map(raw.count, (b"\n\n", b"\r\r", b"\r\n")))
    for size in (len(raw), 16_384, 1_460):
        with linear_cpu(len(raw), events):
            first, verdict, shown, tail = FirstEvent(), False, UsageFrame(None), []
            for piece in in_reads(raw, size):
                verdict = first.feed(piece) if verdict is False else verdict
                shown.feed(piece)
                tail.append(piece)
                trim(tail)
            shown.rest()
            find_usage(tail)
            plain_ending(tail, True)
