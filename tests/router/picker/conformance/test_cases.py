"""Each case passes against a good picker, and fails against one with one misbehaviour."""

from __future__ import annotations

import ssl
from dataclasses import replace

import pytest
import trustme

from router.picker.conformance.cases import cases
from router.picker.conformance.fixture import Effort, Fixture, Patience
from router.picker.conformance.outcome import Verdict
from router.picker.conformance.run import run_conformance
from router.picker.conformance.stream import ENDED_WHILE_SENT
from tests.router.picker.conformance.manners import Manners
from tests.router.picker.conformance.scripted_picker import ScriptedPicker, serve, tls_front
from tests.router.picker.conformance.scripted_pool import ADAPTERS, ENDPOINTS, PREFILL, REWRITES, SHEDDABLE, URGENT

PATIENCE = Patience(answer_s=10.0, silence_s=0.1, settle_s=0.03, arrive_s=2.0, pick_p99_s=1.0)
HASTE = replace(PATIENCE, arrive_s=0.2)
HANGS = {"B19", "B20", "F55", "F62", "G65", "G66", "H75"}
"""Where the misbehaviour is that no answer comes."""
ABORTS = {"C29", "C30", "C32", "C33", "E46", "H72", "H74", "H78", "H80"}
"""Where the picker may end the stream before all is sent, so that gRPC may lose its status."""
EFFORT = Effort(streams=60, resets=30, spread=40, rewrites=200, timed_picks=12, large_body_bytes=1_500_000)
FIXTURE = Fixture(
    target="",
    endpoints=ENDPOINTS,
    prefill=PREFILL,
    sheddable=SHEDDABLE,
    urgent=URGENT,
    adapters=ADAPTERS,
    rewrites=REWRITES,
    patience=PATIENCE,
    effort=EFFORT,
)

MISBEHAVIOURS: dict[str, tuple[Manners, str]] = {
    "A1": (Manners(picks_without_body=False), "no header x-gateway-destination-endpoint: request_headers"),
    "A2": (Manners(appends=True), "a header of the client's would stay"),
    "A3": (Manners(destination_metadata=False), "no dynamic metadata envoy.lb"),
    "A4": (Manners(metadata_differs=True), "the metadata 198.51.100.5:8000"),
    "A5": (Manners(outside_pool=True), "198.51.100.5:8000 is not among"),
    "A6": (Manners(clears_route_cache=False), "clear_route_cache is false"),
    "A7": (Manners(repeats_in_list=True), "comes twice"),
    "A8": (Manners(bare_ipv6=True), "asked for [fd00::1]:8000, got fd00::1:8000"),
    "A9": (Manners(metadata_is_list=True), "the metadata value is list_value"),
    "A10": (Manners(one_endpoint=True), "all of 40 requests at once went to 10.0.0.1:8000"),
    "A11": (Manners(sticky=False), "the same prompt of 8 kB went to"),
    "B12": (Manners(answers_early=True), "before the end of the body came request_headers"),
    "B13": (Manners(body_first=True), "the first answer is request_body"),
    "B14": (Manners(plain_body_answers=True), "has no streamed_response"),
    "B15": (Manners(spoils_bytes=True), "1 bytes were sent and 0 came back"),
    "B16": (Manners(chunk_bytes=100_000), "the largest chunk has 100,000 bytes"),
    "B17": (Manners(ends_twice=True), "after the end came request_body"),
    "B18": (Manners(drops_small_pieces=True), "400 bytes were sent and 0 came back"),
    "B19": (Manners(ends_on_body_only=True), "no answer within 0.5 s"),
    "B20": (Manners(ignores_trailers=True), "a body that request_trailers end: no answer"),
    "B21": (Manners(answers_second_end=True), "a second end was answered with request_body"),
    "B22": (Manners(decodes_pieces=True), "they differ at byte"),
    "B23": (Manners(picks_on_body=True), "an answer to the body sets the destination header"),
    "B24": (Manners(wrong_length=True), "content-length"),
    "B25": (Manners(needs_length=True), "an ImmediateResponse with 411"),
    "C26": (Manners(echoes_buffered=True), "streamed_response, which is for full duplex"),
    "C27": (Manners(echoes_streamed=True), "streamed_response, which is for full duplex"),
    "C28": (Manners(needs_body=True), "no header x-gateway-destination-endpoint: request_headers"),
    "C29": (Manners(needs_protocol_config=True), "INVALID_ARGUMENT: no protocol_config"),
    "C30": (Manners(needs_send_at_once=True), "INVALID_ARGUMENT: the body must be sent at once"),
    "C31": (Manners(answers_observed=True), "nobody reads answers"),
    "C32": (Manners(rejects_unknown_fields=True), "INVALID_ARGUMENT: an unknown field"),
    "C33": (Manners(rejects_attributes=True), "INVALID_ARGUMENT: attributes"),
    "D34": (Manners(reads_subset=False), "is not among 10.0.0"),
    "D35": (Manners(reads_text_subset=False), "an ImmediateResponse with 503"),
    "D36": (Manners(trims=False), "an ImmediateResponse with 503"),
    "D37": (Manners(reads_bare_addresses=False), "an ImmediateResponse with 503"),
    "D38": (Manners(unknown_is_pool=True), "not an ImmediateResponse with 503: request_headers (pick"),
    "D39": (Manners(empty_is_pool=True), "not an ImmediateResponse with 503: request_headers (pick"),
    "D40": (Manners(absent_is_empty=True), "an ImmediateResponse with 503"),
    "D41": (Manners(subset_beats_readiness=True), "not an ImmediateResponse with 503: request_headers (pick"),
    "D42": (Manners(subset_without_body=False), "is not among 10.0.0.1:8000"),
    "D43": (Manners(subset_of_fallbacks=False), "is not among 10.0.0.1:8000, 10.0.0.1:8001"),
    "D44": (Manners(any_namespace=True), "an ImmediateResponse with 503"),
    "D45": (Manners(metadata_reversed=True), "the header lists"),
    "E46": (Manners(aborts_without_endpoints=True), "gRPC status UNAVAILABLE: no endpoints"),
    "E47": (Manners(sees_not_ready=False), "40 requests got 10.0.0.1:8000"),
    "E48": (Manners(sees_terminating=False), "40 requests got 10.0.0.1:8000"),
    "E49": (Manners(sees_ready_again=False), "10.0.0.1:8000 is not used again"),
    "E50": (Manners(one_port=True), "unused"),
    "E51": (Manners(sees_active_ports=False), "40 requests got 10.0.0.1:8000"),
    "E52": (Manners(sees_added=False), "10.0.0.1:8000 is not used again"),
    "E53": (Manners(sees_removed=False), "after it left"),
    "E54": (Manners(delay_s=0.07), "p99"),
    "F55": (Manners(sheds=False), "no answer within 0.5 s"),
    "F56": (Manners(sheds_all=True), "an ImmediateResponse with 429"),
    "F57": (Manners(drop_reason="because"), "x-llm-d-request-dropped-reason is because"),
    "F58": (Manners(retry_after="soon"), "Retry-After is 'soon'"),
    "F59": (Manners(error_type="text/plain"), "content-type is text/plain"),
    "F60": (Manners(forgets_cancelled=True), "the ledger has 1 requests after the cancel, 0 before"),
    "F61": (Manners(fifo=True), "ms after the usual one"),
    "F62": (Manners(reads_old_names=False), "x-gateway-inference-objective is not read"),
    "G63": (Manners(changes_status=True), "the status is changed"),
    "G64": (Manners(follows_served=False), "served; the ledger has 1 and 0"),
    "G65": (Manners(holds_events=True), "an event is held back"),
    "G66": (Manners(answers_response_trailers=False), "no answer within 0.5 s"),
    "G67": (Manners(counts_errors=False), "0 errors before a 500, 0 after it"),
    "G68": (Manners(decodes_responses=True), "they differ at byte"),
    "G69": (Manners(ends_with_error=True), "gRPC status INTERNAL: the end"),
    "G70": (Manners(breaks_on_response_alone=True), "no header x-gateway-destination-endpoint"),
    "G71": (Manners(reads_usage=False), "0 tokens were counted of 7"),
    "H72": (Manners(most_streams=50), "RESOURCE_EXHAUSTED: too many streams"),
    "H73": (Manners(leaks_cancelled=True), "requests left"),
    "H74": (Manners(most_message_bytes=4 * 2**20), "RESOURCE_EXHAUSTED"),
    "H75": (Manners(one_at_a_time=True), "while one stream is not read"),
    "H76": (Manners(drains=False), "readiness is still SERVING"),
    "H78": (Manners(most_undecided=5), "UNAVAILABLE"),
    "H79": (Manners(value_only=True), "the destination is not in raw_value"),
    "H80": (Manners(rejects_capitals=True), "INVALID_ARGUMENT: a header key in capitals"),
    "I81": (Manners(liveness_needs_sync=True), "'liveness' is NOT_SERVING, not SERVING"),
    "I82": (Manners(readiness_needs_sync=False), "'readiness' is SERVING, not NOT_SERVING"),
    "I83": (Manners(serves_processor_name=False), "ExternalProcessor' is NOT_FOUND, not SERVING"),
    "I84": (Manners(serves_manifest_names=False), "'the empty name' is NOT_FOUND, not SERVING"),
    "I85": (Manners(serves_unknown_names=True), "'no.such.service' is SERVING, not NOT_FOUND"),
    "I86": (Manners(watches=False), "Watch ended"),
    "J87": (Manners(appends=True), "the client's header stays beside the pick"),
    "J88": (Manners(removes_pd_headers=False), "x-encoder-hosts-ports"),
    "J90": (Manners(obeys_testing_header=True), "203.0.113.77:8000 is not among"),
    "K91": (Manners(sets_prefiller=False), "no x-prefiller-host-port with a prompt of 60,000 bytes"),
    "K92": (Manners(prefills_short_prompts=True), "is set for a prompt of two letters"),
    "K93": (Manners(rank_elsewhere=True), "198.51.100.5:8000 is not among"),
    "K94": (Manners(knows_adapters=False), "adapter-a is on 10.0.0.2:8000 alone"),
    "K95": (Manners(follows_weights=False), "of 200, expected"),
    "K96": (Manners(reads_prefer=False), "not an ImmediateResponse with 412"),
    "K97": (Manners(scores_are_numbers=False), "the scores are string_value"),
}
"""A misbehaviour per case, and what the report says of it. H77 and J89 need a fixture of their own."""


async def run(manners: Manners, fixture: Fixture, only=(), tls: ssl.SSLContext | None = None):
    picker = ScriptedPicker(manners)
    async with serve(picker) as address:
        if tls is None:
            return await run_conformance(replace(fixture, target=address), picker.pool, only)
        async with tls_front(address, tls) as front:
            return await run_conformance(replace(fixture, target=front, tls=True), picker.pool, only)


def not_passed(results):
    return {result.id: f"{result.verdict}: {result.detail}" for result in results if result.verdict is not Verdict.PASS}


async def test_a_good_picker_passes():
    results = await run(Manners(), FIXTURE)
    assert set(not_passed(results)) == {"H77", "J89"}, not_passed(results)


@pytest.mark.parametrize(
    ("id_", "manners", "said"), [(id_, *row) for id_, row in MISBEHAVIOURS.items()], ids=MISBEHAVIOURS
)
async def test_a_case_fails_for_its_misbehaviour(id_, manners, said):
    patience = {"E54": replace(HASTE, pick_p99_s=0.05), "F56": replace(HASTE, silence_s=0.5)}.get(id_, HASTE)
    patience = replace(patience, answer_s=0.5) if id_ in HANGS else patience
    (result,) = await run(manners, replace(FIXTURE, patience=patience), only=[id_])
    assert result.verdict is Verdict.FAIL
    assert said in result.detail or (id_ in ABORTS and result.detail == ENDED_WHILE_SENT)


@pytest.mark.parametrize(("honours", "verdict"), [(False, Verdict.PASS), (True, Verdict.FAIL)])
async def test_objectives_of_clients_that_may_name_none(honours, verdict):
    fixture = replace(FIXTURE, ignores_objectives=True, patience=replace(PATIENCE, silence_s=0.5))
    (result,) = await run(Manners(honours_objectives=honours), fixture, only=["J89"])
    assert result.verdict is verdict
    assert honours == ("the client's objective counted" in result.detail)


@pytest.fixture(scope="module")
def tls():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("picker.example").configure_cert(context)
    return context


@pytest.mark.parametrize(("protocols", "verdict"), [(["h2"], Verdict.PASS), (["http/1.1"], Verdict.FAIL)])
async def test_tls_and_its_protocol(tls, protocols, verdict):
    tls.set_alpn_protocols(protocols)
    results = await run(Manners(), FIXTURE, only=["H77", "A2", "B15"], tls=tls)
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.PASS, verdict]


def test_every_case_has_a_misbehaviour():
    assert {*MISBEHAVIOURS, "H77", "J89"} == {id_ for id_, _ in cases()}


def test_the_numbers_are_one_to_97():
    assert [case.number for _, case in cases()] == list(range(1, 98))
