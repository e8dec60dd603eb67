import ast
import time

import msgspec
import pytest

from backends.vllm.handover.mooncake import MAX_RANKS, read_engine_ids
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.prefill_answer import MAX_ANSWER_BYTES, answer_limit_bytes
from backends.vllm.server_info import parse_server_info
from docs.build.worker_reads import WORKER_READS
from router.gateway.layers.usage.usage_frame import UsageFrame
from router.requests.answers.usage import TAIL_BYTES, find_usage, trim
from router.requests.pins import ID_WITHIN_BYTES, stored_response_id
from router.tokenization.remote_tokenizer import STEP_BYTES, id_pieces
from router.workers import selftest_rendering
from tests.conformance.growth import ROOT

COSTLY = b"[" + b"1e308," * 100_000 + b"1]"
"""msgspec takes 11 us for each of these numbers where it keeps them."""


def test_the_extra_settings_of_a_connector_are_not_decoded():
    extra = b'{"x":%b,"kv_lease_duration":6,"bidirectional_kv_xfer":true}' % COSTLY
    body = b'{"vllm_config":{"kv_transfer_config":{"kv_connector":"N","kv_connector_extra_config":%b}}}' % extra
    began_s = time.process_time()
    facts = parse_server_info(body)
    assert time.process_time() - began_s < 0.2
    assert facts is not None
    assert (facts.lease_s, facts.bidirectional) == (6.0, True)


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


def test_a_prefills_answer_is_bounded_by_its_request():
    assert answer_limit_bytes(1_000) < 1_100_000
    assert answer_limit_bytes(10_000_000) == MAX_ANSWER_BYTES


def test_engines_of_a_bootstrap_server_are_bounded():
    many = {str(rank): {"engine_id": "e"} for rank in range(MAX_RANKS + 1)}
    with pytest.raises(HandoverError):
        read_engine_ids(msgspec.json.encode(many))


async def test_the_ids_of_a_self_tests_chat_are_bounded():
    asked = []

    class Client:
        async def post_json(self, endpoint, path, body, *, timeout_s, max_bytes):
            asked.append(max_bytes)
            return b'{"tokens":[1,2]}'

    assert await selftest_rendering._ids(Client(), None, b"{}") == [1, 2]  # type: ignore[arg-type]
    assert asked == [selftest_rendering.MAX_ANSWER_BYTES]


def test_only_the_end_of_an_answer_is_searched_for_usage():
    usage = b'{"usage":{"prompt_tokens":5}}'
    pieces = [usage + b"x" * TAIL_BYTES, b"y" * 100]
    trim(pieces)
    assert sum(map(len, pieces)) == TAIL_BYTES
    assert find_usage(pieces).prompt_tokens is None
    assert find_usage([b"x" * TAIL_BYTES, usage]).prompt_tokens == 5


def test_only_the_start_of_an_answer_is_searched_for_its_id():
    assert stored_response_id([b'{"id":"resp_1"', b"}"]) == "resp_1"
    assert stored_response_id([b" " * ID_WITHIN_BYTES, b'{"id":"resp_1"']) is None
    assert stored_response_id([b'{"id":"resp_' + b"1" * 300 + b'"']) is None


CALLS = "tests/faults/test_control_calls.py::test_no_answer_of_a_worker_costs_more_than_the_call_may"
PROBES = "tests/backends/vllm/test_probe.py::test_an_odd_answer_is_an_error_with_a_reason"
TESTS = {
    "head of an answer to a call of the gateway's own": CALLS,
    "`/health`": PROBES,
    "`/version`": "tests/backends/vllm/test_probe.py::test_a_long_version_is_cut",
    "`/v1/models`": PROBES,
    "`/metrics`": "tests/backends/vllm/test_probe.py::test_a_page_of_too_many_samples_or_engines_is_refused",
    "`/kv_event_sources`": "tests/backends/vllm/test_probe.py::test_too_many_event_sources_are_none",
    "`/server_info`": "::test_the_extra_settings_of_a_connector_are_not_decoded",
    "`/tokenize` for a prompt": "::test_ids_are_decoded_in_pieces",
    "`/tokenize` in a self-test": "::test_the_ids_of_a_self_tests_chat_are_bounded",
    "completion in a self-test": CALLS,
    "answer to an operation": CALLS,
    "error of an operation": "tests/backends/vllm/test_operations.py::test_any_answer_becomes_a_short_reason",
    "Mooncake's `/query`": "::test_engines_of_a_bootstrap_server_are_bounded",
    "one message of KV events": (
        "tests/router/workers/test_subscriber.py::test_an_oversized_message_restarts_the_subscription"
    ),
    "events of which some have an unknown form": (
        "tests/backends/vllm/test_events.py::test_a_batch_of_too_many_odd_events_is_refused"
    ),
    "blocks of a slower tier": (
        "tests/router/residency/exact/test_slower_tiers.py::test_a_slower_tier_that_overflows_is_bounded_and_casts_no_doubt"
    ),
    "head of a client's answer": "tests/conformance/test_responses.py::test_response",
    "first event of a stream": "tests/router/requests/answers/test_sse.py::test_an_event_is_judged_by_its_fields",
    "error before an answer": (
        "tests/router/gateway/test_server_errors.py::test_an_incomplete_500_becomes_a_gateway_error"
    ),
    "404 before an answer": "tests/router/gateway/test_unserved_models.py::test_a_long_404_is_relayed_unread",
    "usage of an answer": "::test_only_the_end_of_an_answer_is_searched_for_usage",
    "one event with usage, where it is filtered": "::test_a_large_event_that_reports_usage_is_not_decoded",
    "id of a stored response": "::test_only_the_start_of_an_answer_is_searched_for_its_id",
    "answer of a prefill": "::test_a_prefills_answer_is_bounded_by_its_request",
}
"""The test of each row of the page on limits; without a file, in this one."""


def test_every_reader_of_a_workers_bytes_has_a_test():
    assert list(TESTS) == [read.what for read in WORKER_READS]
    for place in TESTS.values():
        file, _, name = place.partition("::")
        tree = ast.parse((ROOT / (file or "tests/conformance/test_worker_reads.py")).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in names, place
