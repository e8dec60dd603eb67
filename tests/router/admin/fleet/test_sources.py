import pytest
from msgspec.structs import replace

from router.config.model import DiscoveryConfig
from router.discovery.discovery import Discovery
from tests.router.discovery.conftest import HandSource
from tests.support.waiting import eventually

URL = "/admin/v1/registrations/10.0.0.5:8000"
JSON = {"content-type": "application/json"}


@pytest.fixture
async def hand(system):
    async def in_flight():
        return system.in_flight()

    source = HandSource()
    system.discovery = Discovery(system.config, system.control, in_flight, {"lab": source})
    system.discovery.start()
    await eventually(lambda: source.report is not None)
    yield source
    await system.discovery.aclose()


async def test_each_worker_names_its_source(client, system, hand):
    added = await client.post("/admin/v1/workers", json={"url": "http://b:1"})
    assert added.json()["source"] == "api"
    hand.names("a:1", "b:1")
    await eventually(lambda: system.fleet.get("a:1") is not None)
    listed = {one["id"]: one for one in (await client.get("/admin/v1/workers")).json()["workers"]}
    assert (listed["a:1"]["source"], listed["a:1"]["also"]) == ("lab", [])
    assert (listed["b:1"]["source"], listed["b:1"]["also"]) == ("api", ["lab"])


async def test_a_source_that_fails_is_shown_with_the_reason(client, hand, problem):
    hand.report.failed("10.0.0.1:53 does not answer")
    listed = (await client.get("/admin/v1/workers")).json()["sources"]
    assert [(one["name"], one["kind"], one["state"]) for one in listed] == [
        ("lab", "hand", "failing"),
        ("registered", "registered", "waiting"),
    ]
    assert (listed[0]["error"], listed[0]["failures"]) == ("10.0.0.1:53 does not answer", 1)
    assert listed[0]["failing_since"].endswith("+00:00")


async def test_a_registration_adds_a_worker_and_its_end_removes_it(client, system, hand):
    body = {"url": "http://10.0.0.5:8000", "labels": {"zone": "a"}, "ttl_s": 30}
    first = await client.put(URL, json=body)
    assert (first.status_code, first.json()) == (201, {"id": "10.0.0.5:8000", "ttl_s": 30.0})
    assert (await client.put(URL, json=body)).status_code == 200
    await eventually(lambda: system.fleet.get("10.0.0.5:8000") is not None)
    worker = (await client.get("/admin/v1/workers/10.0.0.5:8000")).json()
    assert (worker["source"], worker["labels"]) == ("registered", {"zone": "a"})
    assert (await client.delete(URL)).status_code == 204
    await eventually(lambda: system.fleet.get("10.0.0.5:8000") is None)
    assert (await client.delete(URL)).status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"url": "http://10.0.0.6:8000"}, "the url names 10.0.0.6:8000"),
        ({"url": "http://10.0.0.5:8000/v1"}, "address of the API"),
        ({"url": "http://10.0.0.5:8000", "ttl_s": 0}, "ttl_s"),
        ({"url": "http://10.0.0.5:8000", "weight": -1}, "weight"),
        ({"url": "http://10.0.0.5:8000", "labels": {"lane": "fast"}}, "no lane"),
        ({"url": "http://10.0.0.5:8000", "colour": "red"}, "colour"),
    ],
)
async def test_a_registration_that_is_not_valid_is_refused(client, hand, problem, body, said):
    _, detail = problem(await client.put(URL, json=body), 422)
    assert said in detail


async def test_the_first_registration_a_change_and_the_end_are_audited_and_renewals_are_not(client, hand, caplog):
    caplog.set_level("INFO", "warmroute.audit")
    for labels in ({}, {}, {"zone": "a"}, {"zone": "a"}):
        await client.put(URL, json={"url": "http://10.0.0.5:8000", "labels": labels})
    await client.delete(URL)
    entries = (await client.get("/admin/v1/audit")).json()["entries"]
    assert [(one["operation"], one["status"], one["outcome"]) for one in reversed(entries)] == [
        ("register_worker", 201, "done"),
        ("register_worker", 200, "done"),
        ("deregister_worker", 204, "done"),
    ]
    assert entries[-1]["change"]["url"] == "http://10.0.0.5:8000"
    assert [record.operation for record in caplog.records if record.name == "warmroute.audit"] == [
        "register_worker", "register_worker", "deregister_worker"
    ]  # fmt: skip


async def test_only_addresses_of_the_allowed_networks_may_register(client, system, problem):
    networks = ("10.0.0.0/8", "fd00::/8")
    config = replace(system.config, discovery=DiscoveryConfig(registration_networks=networks))
    system.discovery = Discovery(config, system.control, lambda: None, {})
    here = {"url": "http://10.0.0.5:8000", "kv_events": {"endpoint": "tcp://10.0.0.5:5557"}}
    assert (await client.put(URL, json=here)).status_code == 201
    there = {"url": "http://10.0.0.5:8000", "kv_events": {"endpoint": "tcp://192.0.2.9:5557"}}
    code, detail = problem(await client.put(URL, json=there), 403)
    assert (code, "192.0.2.9 is in no network" in detail) == ("address_not_allowed", True)
    other = await client.put("/admin/v1/registrations/192.0.2.9:80", json={"url": "http://192.0.2.9:80"})
    assert problem(other, 403)[0] == "address_not_allowed"
    assert [one["status"] for one in (await client.get("/admin/v1/audit")).json()["entries"]] == [403, 403, 201]


async def test_readyz_names_sources_when_asked(client, system, hand, problem):
    hand.report.failed("no such file")
    _, detail = problem(await client.get("/readyz"), 503)
    assert "sources of workers: lab no such file" in detail
