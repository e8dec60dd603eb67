import hashlib
from types import SimpleNamespace

import pytest

from policies.view import Decision, FleetView, RequestView, Residency, WorkerView
from router.gateway.layers.receipt.layer import receipt
from tests.support.answers import answer_json, answer_stream
from tests.support.raw_client import PLAIN, post

ASKS = b"X-Warmroute-Receipt: 1\r\n"
KEYS = {"ours": "ours-key", "theirs": "theirs-key"}


@pytest.fixture
def keyed(rig):
    """Return a function that starts a gateway whose key `ours` belongs to a trusted tenant."""
    hashed = [f"{name} sha256:{hashlib.sha256(key.encode()).hexdigest()}" for name, key in KEYS.items()]

    async def start(setting):
        tenants = {"us": {"keys": ["ours"], "trusted": True}}
        auth = {"api_keys": hashed, "isolate_cache": "off"}
        return await rig(answer_json, headers={"receipt": setting}, auth=auth, tenants=tenants)

    return start


async def told(gate, name, asks=ASKS):
    """The receipt that the caller with this key gets."""
    reply = await gate.ask(post(body=PLAIN, extra=b"Authorization: Bearer %s\r\n" % KEYS[name].encode() + asks))
    assert reply.status == 200
    found = reply.header(b"x-warmroute-receipt")
    return None if found is None else dict(member.split("=") for member in found.decode().split(", "))


@pytest.mark.parametrize(
    ("setting", "ours", "theirs"), [("off", False, False), ("trusted", True, False), ("all", True, True)]
)
async def test_the_setting_says_who_gets_a_receipt(keyed, setting, ours, theirs):
    gate = await keyed(setting)
    got = {name: await told(gate, name) is not None for name in KEYS}
    assert got == {"ours": ours, "theirs": theirs}


async def test_only_a_trusted_caller_learns_the_worker(keyed):
    gate = await keyed("all")
    ours, theirs = await told(gate, "ours"), await told(gate, "theirs")
    assert ours["worker"] == f'"{gate.workers[0].id}"'
    assert "worker" not in theirs
    assert ours.keys() - {"worker"} == theirs.keys() == {
        "route", "policy", "attempt", "predicted-cached-tokens", "prompt-tokens", "residency", "waited-ms", "why"
    }  # fmt: skip
    assert (theirs["route"], theirs["policy"], theirs["attempt"]) == ('"default"', '"round_robin"', "1")


@pytest.mark.parametrize("asks", [b"", b"X-Warmroute-Receipt: 0\r\n", b"X-Warmroute-Receipt: yes\r\n"])
async def test_a_request_that_does_not_ask_gets_none(keyed, asks):
    assert await told(await keyed("all"), "ours", asks) is None


async def test_a_stream_has_a_receipt_and_an_error_has_none(rig):
    gate = await rig(answer_stream, headers={"receipt": "all"})
    assert b'why="' in (await gate.ask(post(extra=ASKS))).header(b"x-warmroute-receipt")
    wrong = await gate.ask(post(body=b'{"model":"other","messages":[]}', extra=ASKS))
    assert wrong.status == 404 and wrong.header(b"x-warmroute-receipt") is None


def ticket(reason):
    views = tuple(
        WorkerView(worker, Residency.EXACT, 0, 10, 0, 0, 0, 0, 0.0, 0.0, 0.0) for worker in ("h:1", "h:10", "h:2")
    )
    request = RequestView("r", "m", 10, 16, ())
    record = SimpleNamespace(
        route="r", policy="p", fleet=FleetView(0.0, views), request=request, migration=None, seams=()
    )
    record.decision = Decision(("h:10",), reason)
    return SimpleNamespace(
        record=record, candidate=SimpleNamespace(id="h:10"), attempt=1, predicted_cached_tokens=None,
        residency=Residency.UNKNOWN,
    )  # fmt: skip


def test_a_reason_names_no_worker_to_callers_that_are_not_trusted():
    said = receipt(ticket("trial of h:10, which failed before; h:1 is next"), False)
    assert said.endswith('why="trial of a worker, which failed before; a worker is next"')
    assert "h:10" in receipt(ticket("trial of h:10"), True)


def test_a_policys_reason_cannot_break_the_header():
    said = receipt(ticket('say "hi" \\ \r\nset-cookie: x\x00 é ' + "x" * 500), True)
    assert 'why="say \\"hi\\" \\\\ ??set-cookie: x? ? xxx' in said
    assert said.isascii() and said.isprintable() and len(said) < 400
