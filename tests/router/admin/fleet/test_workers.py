import asyncio
from dataclasses import replace
from urllib.parse import quote

import pytest

from backends.worker import ConnectorFacts
from router.admin.system import TakeoverState
from router.placement.handover.links import Transfer
from router.residency.exact.difference import Difference
from tests.support.waiting import eventually


@pytest.mark.parametrize("authority", ["gpu1:8000", "[fd00::1]:8000"])
async def test_a_worker_is_added_shown_and_removed(client, system, problem, authority):
    body = {"url": f"http://{authority}", "kv_events": {"endpoint": "tcp://gpu1:5557"}}
    added = await client.post("/admin/v1/workers", json=body)
    location = added.headers["location"]
    assert (added.status_code, location) == (201, f"/admin/v1/workers/{quote(authority, safe='')}")
    assert (added.json()["id"], added.json()["state"]) == (authority, "starting")
    assert system.watched[authority].endpoint == "tcp://gpu1:5557"
    assert (await client.get(location)).json()["url"] == f"http://{authority}"
    gone = await client.delete(location)
    assert (gone.status_code, gone.content) == (204, b"")
    problem(await client.get(location), 404)
    problem(await client.delete(location), 404)


async def test_a_key_goes_in_and_never_comes_out(client, system):
    response = await client.post("/admin/v1/workers", json={"url": "http://gpu1:8000", "api_key": "sk-5371"})
    assert response.status_code == 201
    assert system.keys["gpu1:8000"] == "sk-5371"
    listed = await client.get("/admin/v1/workers")
    assert "sk-5371" not in response.text + listed.text
    assert "sk-5371" not in repr(system.control.state)


async def test_what_a_worker_reports_of_its_kv_cache_and_connector_is_shown(client, system):
    name = system.join("http://gpu1:8000")
    url = f"/admin/v1/workers/{name}"
    assert set((await client.get(url)).json()["kv_connector"].values()) == {None}
    facts = system.fleet.get(name).facts
    connector = ConnectorFacts(name="NixlConnector", role="kv_both", lease_s=6.0, side_host="10.0.0.5", side_port=5600)
    caches = {0: replace(facts.caches[0], dtype="fp8", hash_algorithm="sha256")}
    system.fleet.probe_succeeded(name, replace(facts, caches=caches, connector=connector), system.clock_s)
    assert (await client.get(url)).json()["kv_connector"] == {
        "cache_type": "fp8", "hash_algorithm": "sha256", "name": "NixlConnector", "role": "kv_both",
        "load_failure_policy": None, "lease_s": 6.0, "model_type": None, "side_host": "10.0.0.5", "side_port": 5600,
    }  # fmt: skip


async def test_adding_a_worker_twice_is_a_conflict(client, problem):
    await client.post("/admin/v1/workers", json={"url": "http://a:1"})
    code, detail = problem(await client.post("/admin/v1/workers", json={"url": "a:1/"}), 409)
    assert code == "worker_exists"
    assert "a:1" in detail


async def test_labels_name_weight_and_role_are_kept_and_shown(client, system, problem):
    wanted = {"name": "left", "weight": 0.5, "role": "prefill", "labels": {"lane": "prefill", "rack": "7"}}
    added = (await client.post("/admin/v1/workers", json={"url": "http://gpu1:8000", **wanted})).json()
    assert added | wanted == added
    assert system.fleet.get("gpu1:8000").labels == wanted["labels"]
    again = await client.post("/admin/v1/workers", json={"url": "http://gpu3:8000", "name": "left"})
    detail = problem(again, 422)[1]
    assert "workers[1].name" in detail
    assert "'left' is the name of http://gpu1:8000 already (workers[0]); choose another name" in detail
    other = (await client.post("/admin/v1/workers", json={"url": "http://gpu2:8000"})).json()
    assert (other["name"], other["weight"], other["role"]) == (None, 1.0, "mixed")
    assert system.fleet.get("gpu1:8000").weight == 0.5
    assert system.fleet.name_of("gpu1:8000#3") == "left" and system.fleet.name_of("gone:1") is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"url": "ftp://a:1"}, "url: 'ftp://a:1' has scheme 'ftp'; write http://HOST:PORT or https://HOST:PORT"),
        ({"url": "http://a:1", "kv_events": {"endpoint": "a:1"}}, "kv_events.endpoint: 'a:1' is not a ZeroMQ address"),
        ({"url": "http://a:1", "labels": {"lane": "fast"}}, "labels.lane: 'fast' is no lane; write prefill or decode"),
        ({"url": 5}, "$.url"),
        ({"url": "http://a:1", "name": "a b"}, "$.name"),
        ({"url": "http://a:1", "name": "left\n"}, "$.name"),
        ({"url": "http://a:1", "weight": 0}, "$.weight"),
        ({"url": "http://a:1", "weight": "NaN"}, "$.weight"),
        ({"url": "http://a:1", "role": "Prefill"}, "$.role"),
        ({"uri": "http://a:1"}, "uri"),
        ({"url": "http://a:1/v1"}, "url: 'http://a:1/v1' is the address of the API, not of the worker; drop /v1"),
        ({"url": "http://a:1", "api_key": "***"}, "api_key: api_key is ***"),
        ({"url": "http://a:1", "api_key": "5371\n"}, "$.api_key"),
        ({"url": "http://a:1", "kv_events": {"endpoint": "tcp://a:1", "x": 1}}, "unknown field `x`"),
    ],
)
async def test_a_worker_that_is_not_valid_is_refused(client, system, problem, body, said):
    detail = problem(await client.post("/admin/v1/workers", json=body), 422)[1]
    assert said in detail
    assert "5371" not in detail
    assert not system.fleet.endpoints


async def test_drain_and_undrain(client, system, problem):
    worker = system.join("http://a:1")
    assert (await client.post(f"/admin/v1/workers/{worker}/drain")).json()["state"] == "draining"
    assert (await client.post(f"/admin/v1/workers/{worker}/drain")).json()["state"] == "draining"
    assert (await client.post(f"/admin/v1/workers/{worker}/undrain")).json()["state"] == "ready"
    problem(await client.post("/admin/v1/workers/b:2/drain"), 404)
    problem(await client.post("/admin/v1/workers/b:2/undrain"), 404)


async def test_a_drain_may_say_when_answers_move(client, system, problem):
    worker = system.join("http://a:1")
    for query, after_s in (("?migrate_after_s=20", 20.0), ("", None), ("?migrate_after_s=7", 7.0)):
        assert (await client.post(f"/admin/v1/workers/{worker}/drain{query}")).status_code == 200
        assert system.fleet.get(worker).migrate_after_s == after_s
    await client.post(f"/admin/v1/workers/{worker}/undrain")
    await client.post(f"/admin/v1/workers/{worker}/drain")
    assert system.fleet.get(worker).migrate_after_s is None
    problem(await client.post(f"/admin/v1/workers/{worker}/drain?migrate_after_s=soon"), 422)


async def test_a_drain_that_waits_answers_once_nothing_is_there(client, system, problem):
    worker = system.join("http://a:1")
    system.requests[worker] = 2
    asking = asyncio.create_task(client.post(f"/admin/v1/workers/{worker}/drain?wait_s=5"))
    await eventually(lambda: system.fleet.get(worker).draining)
    listed = (await client.get(f"/admin/v1/workers/{worker}")).json()
    assert (listed["state"], listed["in_flight"]) == ("draining", 2)
    assert not asking.done()
    del system.requests[worker]
    answer = await asyncio.wait_for(asking, 2)
    assert (answer.status_code, answer.json()["in_flight"]) == (200, 0)


async def test_a_drain_says_when_requests_outlast_the_wait(client, system, problem):
    worker = system.join("http://a:1")
    system.requests[worker] = 2
    code, detail = problem(await client.post(f"/admin/v1/workers/{worker}/drain?wait_s=1"), 409)
    assert (code, detail[:10]) == ("worker_busy", "2 requests")
    assert system.fleet.get(worker).draining
    await client.post(f"/admin/v1/workers/{worker}/undrain")
    asking = asyncio.create_task(client.post(f"/admin/v1/workers/{worker}/drain?wait_s=5"))
    await eventually(lambda: system.fleet.get(worker).draining)
    await client.post(f"/admin/v1/workers/{worker}/undrain")
    assert problem(await asyncio.wait_for(asking, 2), 409)[0] == "undrained"
    problem(await client.post(f"/admin/v1/workers/{worker}/drain?wait_s=0"), 422)


async def test_a_drain_waits_for_the_gateway_whose_place_was_taken(client, system, problem):
    worker = system.join("http://a:1")
    system.followed = False
    assert problem(await client.post(f"/admin/v1/workers/{worker}/drain?wait_s=1"), 409)[0] == "worker_busy"
    system.followed = True
    assert (await client.post(f"/admin/v1/workers/{worker}/drain?wait_s=1")).status_code == 200


async def test_changes_are_not_made_in_a_process_that_was_taken_over(client, system, problem):
    worker = system.join("http://a:1")
    system.takeover_state = TakeoverState.OFFERED  # until it is known who serves, nobody can say that a worker is idle
    assert problem(await client.post(f"/admin/v1/workers/{worker}/drain?wait_s=1"), 409)[0] == "worker_busy"
    system.fleet.undrain(worker)
    asking = asyncio.create_task(client.post(f"/admin/v1/workers/{worker}/drain?wait_s=5"))
    await eventually(lambda: system.fleet.get(worker).draining)
    system.takeover_state = TakeoverState.DONE
    answer = await asyncio.wait_for(asking, 2)
    assert problem(answer, 503)[0] == "handed_over"
    assert answer.headers["connection"] == "close"
    assert problem(await client.post(f"/admin/v1/workers/{worker}/undrain"), 503)[0] == "handed_over"
    assert (await client.get(f"/admin/v1/workers/{worker}")).status_code == 200


async def test_an_undrain_that_waits_does_not_judge_a_worker_for_the_process_that_took_over(client, system, problem):
    worker = system.join("http://a:1")
    for _ in range(3):
        system.fleet.probe_failed(worker, "down", 0.0)
    asking = asyncio.create_task(client.post(f"/admin/v1/workers/{worker}/undrain?wait_s=5"))
    await asyncio.sleep(0.05)
    assert not asking.done()
    system.takeover_state = TakeoverState.DONE
    assert problem(await asyncio.wait_for(asking, 2), 503)[0] == "handed_over"


async def test_an_undrain_that_waits_answers_once_the_worker_is_ready(client, system, problem):
    worker = system.join("http://a:1")
    await client.post(f"/admin/v1/workers/{worker}/drain")
    assert (await client.post(f"/admin/v1/workers/{worker}/undrain?wait_s=5")).json()["state"] == "ready"
    for _ in range(3):
        system.fleet.probe_failed(worker, "down", 0.0)
    code, detail = problem(await client.post(f"/admin/v1/workers/{worker}/undrain?wait_s=1"), 409)
    assert (code, "unhealthy" in detail) == ("worker_not_ready", True)


async def test_a_worker_is_shown_with_view_and_load(client, system):
    worker = system.join("http://a:1")
    ticket = system.core.dispatcher.dispatch(system.request("waiting", 100), system.clock_s)
    document = (await client.get(f"/admin/v1/workers/{worker}")).json()
    assert document["version"] == "0.33.0"
    assert document["models"] == [
        {"id": "m", "root": None, "parent": None, "max_model_len": 4096, "prompts": "ids of m from a test"}
    ]
    (candidate,) = document["candidates"]
    assert (candidate["id"], candidate["rank"]) == ("a:1", None)
    assert candidate["residency"] == "approximate"
    assert candidate["reason"]
    assert (candidate["block_size"], candidate["capacity_blocks"], candidate["capacity_tokens"]) == (16, 100, 1600)
    assert candidate["load"]["running_requests"] == 1
    assert candidate["load"]["queued_tokens"] == 100
    assert candidate["load"]["kv_tokens"] == 100
    assert candidate["events"]["endpoint"] == "tcp://a:5557"
    assert (candidate["events"]["linked"], candidate["events"]["lag_s"]) == (True, 0.001)
    assert candidate["self_test"] == {"verdict": "exact", "reason": "predicted 32 of 40, 32 reported"}
    assert document["restarts"] == 4
    system.core.tickets.cancelled(ticket, system.clock_s)
    (candidate,) = (await client.get(f"/admin/v1/workers/{worker}")).json()["candidates"]
    assert candidate["load"]["running_requests"] == 0


async def test_learned_speeds_and_comparisons_are_shown(client, system):
    worker = system.join("http://a:1")
    (candidate,) = (await client.get(f"/admin/v1/workers/{worker}")).json()["candidates"]
    assert (candidate["estimates"]["speed"], candidate["estimates"]["prefill_token_us"]) == ("prior", None)
    for number in range(20):
        system.serve(f"r{number}", 100 + 7 * number)
        system.clock_s += 1
    (candidate,) = (await client.get(f"/admin/v1/workers/{worker}")).json()["candidates"]
    estimates = candidate["estimates"]
    assert estimates["observations"] == 20
    assert estimates["prefill_token_us"] > 0
    assert estimates["queue_wait_s"] is not None
    assert estimates["speed"] == "learned"
    assert 0 < estimates["utilisation"] <= 1
    compared = candidate["predicted_cached"]
    assert compared["equal"] + compared["over"] + compared["under"] == 20
    assert compared["pending"] == 0
    assert compared["differences"].keys() == {*map(str, Difference)} - {"pending"}
    assert sum(compared["differences"].values()) == compared["over"] + compared["under"]


async def test_links_are_shown_at_the_worker_that_received(client, system):
    names = [system.join(f"http://a:{port}") for port in (1, 2, 3)]
    fast, slow, receiver = system.fleet.candidates
    for sender, took_s in ((fast, 0.1), (slow, 1.0)):
        system.core.planner.transferred(
            Transfer("handover", sender, receiver, 1_000, 0.0, 0.0, system.clock_s - took_s), system.clock_s
        )
    listed = [(await client.get(f"/admin/v1/workers/{name}")).json()["candidates"][0]["links"] for name in names]
    assert listed[:2] == [[], []]
    assert [(link["sender"], link["transfers"]) for link in listed[2]] == [("a:2", 1), ("a:1", 1)]
    assert listed[2][0]["tokens_per_s"] < listed[2][1]["tokens_per_s"]
    assert all(link["latency_s"] >= 0.0 for link in listed[2])
