"""KV events on the wire. Frames are written by hand from vLLM's field order, not by the code under test."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.vllm.events import (
    MAX_ODD_EVENTS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    ReplayedBatch,
    ReplayEnd,
    WireError,
    decode_batch,
    parse_replay,
    replay_request,
    split_frames,
)

pack = msgspec.msgpack.encode

STORED_MAP = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, 7],
    "parent_block_hash": None,
    "token_ids": [1, 300, 70_000, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "adapter",
    "extra_keys": [["adapter", ["image", 1], "salt"], None],
    "group_idx": 1,
    "kv_cache_spec_kind": "full_attention",
}
STORED_ROW = ["BlockStored", *list(STORED_MAP.values())[1:]]


def batch(*events, rank=0):
    return pack([1.5, list(events), rank])


@pytest.mark.parametrize("event", [STORED_MAP, STORED_ROW])
def test_stored_events_are_read_in_both_shapes(event):
    read = decode_batch(batch(event, rank=3))
    assert (read.ts, read.rank, read.unknown, read.malformed) == (1.5, 3, 0, 0)
    (stored,) = read.events
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == [2**64 - 1, 7]
    assert stored.parent_block_hash is None
    assert stored.token_ids == [1, 300, 70_000, 4]
    assert (stored.block_size, stored.medium, stored.lora_name, stored.group_idx) == (2, "GPU", "adapter", 1)
    assert stored.extra_keys == [["adapter", ["image", 1], "salt"], None]
    assert stored.kv_cache_spec_kind == "full_attention"


def test_oldest_rows_stop_at_the_medium():
    """vLLM 0.11 had no lora_name yet."""
    (stored,) = decode_batch(pack([0.0, [["BlockStored", [1], 9, [5, 6], 2, 4, "GPU"]]])).events
    assert (stored.parent_block_hash, stored.lora_id, stored.medium, stored.lora_name) == (9, 4, "GPU", None)


def test_the_newest_fields_are_read():
    event = STORED_MAP | {
        "locality": "LOCAL",
        "ownership": {"whatever": 1},
        "session_id": "s",
        "kv_cache_spec_sliding_window": None,
        "lookahead_token_ids": [[1], [2]],
    }
    (stored,) = decode_batch(batch(event)).events
    assert stored.lookahead_token_ids == [[1], [2]]
    assert stored.locality == "LOCAL"


@pytest.mark.parametrize(
    "events",
    [
        [
            {"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "CPU", "group_idx": 1},
            {"type": "AllBlocksCleared"},
        ],
        [["BlockRemoved", [1, 2], "CPU", 1], ["AllBlocksCleared"]],
    ],
)
def test_removed_and_cleared_events_are_read_in_both_shapes(events):
    removed, cleared = decode_batch(batch(*events)).events
    assert isinstance(removed, BlockRemoved)
    assert (removed.block_hashes, removed.medium, removed.group_idx) == ([1, 2], "CPU", 1)
    assert isinstance(cleared, AllBlocksCleared)


def test_rank_may_be_missing():
    assert decode_batch(pack([1.0, []])).rank is None


def test_a_batch_may_have_further_fields():
    assert decode_batch(pack([1.0, [STORED_MAP], 0, "new", {}])).events[0].block_size == 2


@pytest.mark.parametrize("width", [16, 32])
def test_hashes_may_be_bytes(width):
    event = STORED_MAP | {"block_hashes": [b"a" * width, b"b" * width], "parent_block_hash": b"c" * width}
    (stored,) = decode_batch(batch(event)).events
    assert stored.block_hashes == [b"a" * width, b"b" * width]
    assert stored.parent_block_hash == b"c" * width


def test_an_unknown_field_is_ignored():
    read = decode_batch(batch(STORED_MAP | {"brand_new": [1, {"deep": None}]}))
    assert len(read.events) == 1 and read.unknown == read.malformed == 0


@pytest.mark.parametrize(
    "odd", [{"type": "BlockMoved", "x": 1}, ["BlockMoved", 1], 17, None, [], {}, "text", {"type": 5}]
)
@pytest.mark.parametrize("good", [STORED_MAP, STORED_ROW])
def test_unknown_event_types_are_counted_and_the_rest_kept(odd, good):
    read = decode_batch(batch(good, odd, good))
    assert [type(event).__name__.lstrip("_")[:6] for event in read.events] == ["BlockS", "BlockS"]
    assert (read.unknown, read.malformed) == (1, 0)


def test_both_shapes_may_occur_in_one_batch():
    read = decode_batch(batch(STORED_MAP, STORED_ROW))
    assert len(read.events) == 2 and read.unknown == 0


def test_an_odd_optional_field_is_dropped():
    read = decode_batch(batch(STORED_MAP | {"locality": 5, "lookahead_token_ids": "x"}))
    (stored,) = read.events
    assert stored.locality is None and stored.lookahead_token_ids is None
    assert stored.token_ids == STORED_MAP["token_ids"]


@pytest.mark.parametrize(
    "change",
    [{"token_ids": "abc"}, {"block_size": None}, {"block_hashes": [None]}, {"lora_name": 5}, {"medium": 3}],
)
def test_unreadable_event_is_counted_and_the_rest_kept(change):
    read = decode_batch(batch(STORED_MAP | change, STORED_MAP))
    assert len(read.events) == 1 and read.malformed == 1


def test_missing_field_is_malformed():
    event = {key: value for key, value in STORED_MAP.items() if key != "token_ids"}
    assert decode_batch(batch(event)).malformed == 1


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"hello", pack({"ts": 1}), pack([]), pack([1.0]), pack([1.0, None]), pack([1.0, {}]), pack(5)],
)
def test_a_garbled_payload_is_a_typed_error(payload):
    with pytest.raises(WireError):
        decode_batch(payload)


@pytest.mark.parametrize(
    "payload", [b"\x91" * 5_000, b"\x92\x01" + b"\x91" * 5_000, b"\x92\x01\x91" + b"\x81\xa4type" * 5_000]
)
def test_a_payload_nested_too_deeply_is_a_typed_error(payload):
    with pytest.raises(WireError, match="not MessagePack"):
        decode_batch(payload)


@pytest.mark.parametrize("kind", [None, 5, [], [[[]]], {}, b"BlockStored"])
def test_an_event_without_a_text_type_is_unknown(kind):
    assert decode_batch(batch({"type": kind}, STORED_MAP)).unknown == 1


@given(st.binary(max_size=200))
def test_random_bytes_never_crash(payload):
    try:
        decode_batch(payload)
    except WireError:
        pass


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(sorted(STORED_MAP)), values)
def test_any_value_in_a_field_is_handled(name, value):
    read = decode_batch(batch(STORED_MAP | {name: value}, STORED_MAP))
    assert len(read.events) + read.unknown + read.malformed == 2
    assert read.events[-1].token_ids == STORED_MAP["token_ids"]


def test_published_frames_are_split():
    assert split_frames([b"kv-events", (258).to_bytes(8, "big"), b"payload"]) == (258, b"payload")


@pytest.mark.parametrize("frames", [[], [b"", b"1234567", b""], [b"", b"12345678"], [b"", b"", b"12345678", b""]])
def test_odd_frames_are_a_typed_error(frames):
    with pytest.raises(WireError):
        split_frames(frames)


def test_a_replay_request_has_vllms_frames():
    assert replay_request(5) == [b"", b"\0\0\0\0\0\0\0\5"]


@pytest.mark.parametrize("topic", [[], [b""], [b"kv-events"]])
def test_replay_replies_are_read_in_both_shapes(topic):
    seq = (9).to_bytes(8, "big")
    assert parse_replay([b"", *topic, seq, b"payload"]) == ReplayedBatch(9, b"payload")
    assert parse_replay([b"", *topic, b"\xff" * 8, b""]) is ReplayEnd.END


@pytest.mark.parametrize("frames", [[], [b""], [b"", b"123", b""], [b""] * 5])
def test_odd_replay_frames_are_a_typed_error(frames):
    with pytest.raises(WireError):
        parse_replay(frames)


def test_a_batch_of_too_many_odd_events_is_refused():
    assert decode_batch(batch(*[["Later", 1]] * MAX_ODD_EVENTS)).unknown == MAX_ODD_EVENTS
    with pytest.raises(WireError, match="at most"):
        decode_batch(batch(*[["Later", 1]] * (MAX_ODD_EVENTS + 1)))
    assert len(decode_batch(batch(*[["AllBlocksCleared"]] * (MAX_ODD_EVENTS + 1))).events) == MAX_ODD_EVENTS + 1


def test_events_that_cannot_be_read_cost_little():
    """Each took 0.4 ms, so one message of 1 MB held the event loop for 17 s."""
    began_s = time.process_time()
    assert decode_batch(batch(*[{"type": "BlockStored"}] * MAX_ODD_EVENTS)).malformed == MAX_ODD_EVENTS
    assert time.process_time() - began_s < 1.0


@pytest.mark.parametrize("fields", [{"medium": "CPU"}, {"medium": "GPU", "locality": "REMOTE"}])
def test_an_unreadable_event_about_a_slower_tier_is_counted_by_its_blocks(fields):
    read = decode_batch(batch(STORED_MAP | {"token_ids": None} | fields, {"type": "BlockStored", **fields}))
    assert (read.malformed, read.skipped_blocks) == (0, 3)
