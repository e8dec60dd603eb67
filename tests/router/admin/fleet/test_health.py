import msgspec

from router.config.model import Config


async def test_livez_answers_while_the_loop_runs(client):
    response = await client.get("/livez")
    assert (response.status_code, response.json()) == (200, {"status": "alive"})
    assert (await client.head("/livez")).status_code == 200


async def test_not_ready_until_a_worker_is(client, system, problem):
    code, detail = problem(await client.get("/readyz"), 503)
    assert (code, "none is configured" in detail) == ("not_ready", True)
    worker = await client.post("/admin/v1/workers", json={"url": "http://a:1"})
    assert worker.json()["state"] == "starting"
    response = await client.get("/readyz")
    assert "a:1 is starting" in problem(response, 503)[1]
    assert response.headers["retry-after"] == "1"
    system.join("http://a:1")
    ready = {"status": "ready", "workers_ready": 1, "workers": 1, "processes_ready": 1, "processes": 1, "alone": False}
    ready["sources"] = None
    assert (await client.get("/readyz")).json() == ready


async def test_a_worker_on_trial_counts(client, system):
    """Or a platform would send no request, and the trial could never end."""
    worker = system.join("http://a:1")
    for _ in range(3):
        system.fleet.probe_failed(worker, "dead", system.clock_s)
    assert (await client.get("/readyz")).status_code == 503
    system.clock_s += 60
    system.join("http://a:1")
    assert system.fleet.get(worker).state == "half_open"
    assert (await client.get("/readyz")).status_code == 200


async def test_not_ready_while_not_accepting(client, system, problem):
    system.join("http://a:1")
    system.accepting = False
    assert "public port" in problem(await client.get("/readyz"), 503)[1]


async def test_long_fleets_are_cut_short(client, system, problem):
    for port in range(1, 9):
        await client.post("/admin/v1/workers", json={"url": f"http://a:{port}"})
    assert problem(await client.get("/readyz"), 503)[1].endswith("and 3 more")


async def test_metrics_are_prometheus_text(client):
    response = await client.get("/metrics")
    assert response.content.startswith(b"# HELP")
    assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"


async def test_config_shows_the_settings_in_effect_with_what_the_api_changed(client, system):
    assert msgspec.convert((await client.get("/admin/v1/config")).json(), Config) == system.config
    await client.put("/admin/v1/policy", json={"rule": "random"})
    await client.post("/admin/v1/workers", json={"url": "http://c:1", "api_key": "k-5371"})
    response = await client.get("/admin/v1/config")
    assert response.json()["policy"]["rule"] == "random"
    assert [worker["url"] for worker in response.json()["workers"]] == ["http://c:1"]
    assert "5371" not in response.text
