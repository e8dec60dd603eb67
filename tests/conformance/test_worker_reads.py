"""What a worker answers is decoded without a step that its content makes long."""

from __future__ import annotations

import time
from array import array

import msgspec
import pytest

from backends.vllm.handover.prefill_answer import MAX_ANSWER_BYTES, answer_limit_bytes
from backends.vllm.server_info import parse_server_info
from router.gateway.rewrites.answer_ids import AnswerIds
from router.gateway.rewrites.usage_frame import UsageFrame
from router.tokenization.remote_tokenizer import STEP_BYTES, id_pieces

COSTLY = b"[" + b"1e308," * 100_000 + b"1]"
"""msgspec takes 11 us for each of these numbers where it keeps them."""


def test_the_extra_settings_of_a_connector_are_not_decoded():
    extra = b'{"x":%b,"kv_lease_duration":6,"bidirectional_kv_xfer":true,"decoder_kv_blocks_ttl":"soon"}' % COSTLY
    body = b'{"vllm_config":{"kv_transfer_config":{"kv_connector":"N","kv_connector_extra_config":%b}}}' % extra
    began_s = time.process_time()
    facts = parse_server_info(body)
    assert time.process_time() - began_s < 0.2
    assert facts is not None
    assert (facts.lease_s, facts.bidirectional, facts.turn_lease_s) == (6.0, True, None)


@pytest.mark.parametrize("lease", [COSTLY, b"9" * 4_000, b"null", b"true", b'"6"', b"{}"])
def test_a_lease_that_is_no_number_is_unknown(lease):
    body = b'{"vllm_config":{"kv_transfer_config":{"kv_connector_extra_config":{"kv_lease_duration":%b}}}}' % lease
    facts = parse_server_info(body)
    assert facts is not None and facts.lease_s is None


def test_a_large_event_that_reports_usage_is_not_decoded():
    event = b'data: {"choices":%b,"usage":%b}\n\n' % (COSTLY, COSTLY)
    began_s = time.process_time()
    assert UsageFrame(None).feed(event) == event
    assert time.process_time() - began_s < 0.2


@pytest.mark.parametrize(
    ("choices", "usage", "taken"),
    [(b"[]", b"{}", True), (b"[ \n ]", b'{"a":1}', True), (b"[1]", b"{}", False), (b"[]", b"null", False)],
)
def test_a_usage_frame_has_no_choices_and_an_object(choices, usage, taken):
    event = b'data: {"choices":%b,"usage":%b}\n\n' % (choices.replace(b"\n", b" "), usage)
    assert UsageFrame(None).feed(event) == (b"" if taken else event)


@pytest.mark.parametrize("count", [0, 1, 20_000, 200_000])
def test_ids_are_decoded_in_pieces(count):
    ids = [n * 7 % 200_000 for n in range(count)]
    pieces = list(id_pieces(msgspec.json.encode(ids)))
    assert max(map(len, pieces)) <= STEP_BYTES + 10
    assert [one for piece in pieces for one in msgspec.json.decode(piece, type=list[int])] == ids


@pytest.mark.parametrize("unit", [b"[1,1],", b'"1,1",', b'{"a":1},', b"1.5,", b"null,"])
def test_a_list_of_something_else_is_no_list_of_ids(unit):
    text = b"[" + unit * 30_000 + b"1]"
    with pytest.raises(msgspec.DecodeError):
        _ = [msgspec.json.decode(piece, type=list[int]) for piece in id_pieces(text)]


def test_the_ids_of_an_endless_answer_are_dropped(monkeypatch):
    monkeypatch.setattr("router.gateway.rewrites.answer_ids.MAX_TOKEN_IDS", 10)
    answer = AnswerIds(collects=True)
    for _ in range(3):
        answer.feed(b'data: {"choices":[{"token_ids":[1,2,3,4]}]}\n\n')
    assert answer.ids == array("I")


def test_a_prefills_answer_is_bounded_by_its_request():
    assert answer_limit_bytes(1_000) < 1_100_000
    assert answer_limit_bytes(10_000_000) == MAX_ANSWER_BYTES
