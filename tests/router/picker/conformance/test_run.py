"""What the suite does where a case cannot be tried, or goes wrong."""

import ssl
from dataclasses import replace

import pytest
import trustme

from router.picker.conformance.channel import TargetUnreachable
from router.picker.conformance.fixture import CaseProfile, Fixture, Patience
from router.picker.conformance.hook import ActionNotOffered, HookFailed
from router.picker.conformance.outcome import Verdict
from router.picker.conformance.run import run_conformance
from tests.router.picker.conformance.manners import Manners
from tests.router.picker.conformance.scripted_picker import ScriptedPicker, serve, tls_front
from tests.router.picker.conformance.scripted_pool import ENDPOINTS

BARE = Fixture(target="", patience=Patience(settle_s=0.0))
KNOWN = replace(BARE, endpoints=ENDPOINTS)


class Raises:
    def __init__(self, error):
        self.error = error

    async def run(self, action, endpoint):
        raise self.error


async def outcome(fixture, hook, id_, manners=None):
    async with serve(ScriptedPicker(manners or Manners())) as address:
        (result,) = await run_conformance(replace(fixture, target=address), hook, [id_])
    return result.verdict, result.detail


@pytest.mark.parametrize(
    ("fixture", "id_", "said"),
    [
        (replace(BARE, profiles=frozenset({CaseProfile.CORE})), "B13", "profile streaming was not asked for"),
        (replace(BARE, endpoints=ENDPOINTS[:1]), "D34", "needs 2 of the pool's endpoints (--endpoint); 1 were named"),
        (KNOWN, "E47", "needs a hook (--hook) with not-ready, ready"),
        (KNOWN, "K91", "needs --prefill"),
        (replace(KNOWN, endpoints=ENDPOINTS[:3]), "A8", "no IPv6 endpoint was named"),
        (replace(KNOWN, endpoints=ENDPOINTS[1:3]), "E50", "no two endpoints have the same address"),
        (KNOWN, "H77", "the picker is reached without TLS"),
    ],
)
async def test_a_case_that_cannot_be_tried_says_why(fixture, id_, said):
    assert await outcome(fixture, None, id_) == (Verdict.SKIP, said)


async def test_an_action_that_is_not_offered_skips():
    hook = Raises(ActionNotOffered("the hook does not offer not-ready"))
    assert await outcome(KNOWN, hook, "E47") == (Verdict.SKIP, "the hook does not offer not-ready")


async def test_a_hook_that_fails_fails_the_case():
    assert await outcome(KNOWN, Raises(HookFailed("status 1")), "E47") == (Verdict.FAIL, "status 1")


async def test_what_the_suite_cannot_read_fails_the_case_alone():
    verdict, detail = await outcome(KNOWN, Raises(KeyError("odd")), "E47")
    assert (verdict, detail) == (Verdict.FAIL, "the suite could not read what came: KeyError: 'odd'")


async def test_a_case_has_a_time_limit():
    fixture = replace(KNOWN, patience=Patience(case_s=0.1))
    assert await outcome(fixture, None, "A1", Manners(delay_s=30.0)) == (Verdict.FAIL, "did not end within 0.1 s")


async def test_without_a_hook_a_picker_passes_what_is_left():
    async with serve(ScriptedPicker(Manners())) as address:
        wanted = ["A2", "H73", "I83", "G64"]
        results = await run_conformance(replace(KNOWN, target=address), None, wanted)
    assert [result.verdict for result in results] == [Verdict.PASS] * 4
    assert [result.detail for result in results if result.detail] == [
        "the hook offers no ledger, so it was not seen to move",
        "the hook offers no ledger, so the picker's ledger was not seen",
    ]


async def test_a_target_where_nothing_answers():
    with pytest.raises(TargetUnreachable, match=r"no HTTP/2 connection to .* without TLS"):
        await run_conformance(replace(BARE, target="127.0.0.1:1", patience=Patience(answer_s=0.2)), None)


async def test_tls_to_a_port_without_it():
    async with serve(ScriptedPicker(Manners())) as address:
        with pytest.raises(TargetUnreachable, match=r"TLS to .* failed"):
            await run_conformance(replace(BARE, target=address, tls=True), None)


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_named_authority_is_asked_for(tmp_path, trusted):
    signed_by, named = trustme.CA(), trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    signed_by.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    file = tmp_path / "ca.pem"
    (signed_by if trusted else named).cert_pem.write_to_path(file)
    async with serve(ScriptedPicker(Manners())) as address, tls_front(address, context) as front:
        fixture = replace(BARE, target=front, tls=True, ca_file=file)
        if trusted:
            (result,) = await run_conformance(fixture, None, ["A2"])
            assert result.verdict is Verdict.PASS
        else:
            with pytest.raises(TargetUnreachable, match="certificate verify failed"):
                await run_conformance(fixture, None, ["A2"])


async def test_health_on_a_port_of_its_own():
    async with serve(ScriptedPicker(Manners())) as address, serve(ScriptedPicker(Manners())) as other:
        fixture = replace(BARE, target=address, health=other)
        (result,) = await run_conformance(fixture, None, ["I83"])
    assert result.verdict is Verdict.PASS


async def test_the_report_comes_case_by_case_and_the_last_one_last():
    seen = []
    async with serve(ScriptedPicker(Manners())) as address:
        fixture = replace(KNOWN, target=address)
        results = await run_conformance(fixture, None, ["H76", "A1", "I83"], lambda result: seen.append(result.id))
    assert seen == ["A1", "I83", "H76"]
    assert [result.id for result in results] == ["A1", "H76", "I83"]
