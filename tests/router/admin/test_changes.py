import pytest

from router.control.change import NotAppliedError
from router.control.state_file import NotSavedError

NEW = {"url": "http://c:1", "api_key": "k-5371", "labels": {"rack": "7"}}


async def test_answers_have_the_version_of_the_state(client, system):
    system.join("http://a:1")
    before = (await client.get("/admin/v1/workers")).headers["etag"]
    changed = await client.post("/admin/v1/workers/a:1/drain")
    assert changed.headers["etag"] == system.control.state.tag != before
    for path in ("/admin/v1/workers", "/admin/v1/workers/a:1", "/admin/v1/policy"):
        assert (await client.get(path)).headers["etag"] == changed.headers["etag"]
    again = await client.post("/admin/v1/workers/a:1/drain")
    assert again.headers["etag"] == changed.headers["etag"], "nothing changed"


async def test_an_answer_says_how_long_a_change_lasts(client, system):
    assert (await client.post("/admin/v1/workers", json=NEW)).headers["x-warmroute-kept"] == "process"
    system.control.saving._store = type("Memory", (), {"save": lambda self, stored: None})()
    assert (await client.delete("/admin/v1/workers/c:1")).headers["x-warmroute-kept"] == "state_dir"


CHANGES = [
    ("POST", "/admin/v1/workers", NEW),
    ("PATCH", "/admin/v1/workers/a:1", {"weight": 0.5}),
    ("DELETE", "/admin/v1/workers/a:1", None),
    ("POST", "/admin/v1/workers/a:1/drain", None),
    ("PUT", "/admin/v1/policy", {"rule": "random"}),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_dry_run_shows_the_difference_and_changes_nothing(client, system, method, path, body):
    system.join("http://a:1")
    before, tag = system.control.state, system.control.state.tag
    answer = await client.request(method, f"{path}?dry_run=true", json=body)
    assert (answer.status_code, answer.headers["etag"]) == (200, tag)
    document = answer.json()
    assert (document["dry_run"], document["version"], document["kept"]) == (True, 1, False)
    assert document["differences"]
    assert "5371" not in answer.text
    assert system.control.state is before
    real = await client.request(method, f"{path}?dry_run=false", json=body)
    assert real.is_success and system.control.state.version == 2


PATCH = "/admin/v1/workers/a:1"


async def test_a_patch_changes_what_it_names_and_null_is_the_default(client, system):
    events = {"endpoint": "tcp://a:5557", "replay_endpoint": "tcp://a:5558"}
    await client.post("/admin/v1/workers", json={"url": "http://a:1", "labels": {"rack": "7"}, "kv_events": events})
    endpoint = system.fleet.get("a:1")
    body = {
        "name": "left",
        "weight": 0.5,
        "role": "prefill",
        "labels": {"zone": "b"},
        "kv_events": {"replay_endpoint": None},
    }
    shown = (await client.patch(PATCH, json=body)).json()
    assert (shown["name"], shown["weight"], shown["role"]) == ("left", 0.5, "prefill")
    assert shown["labels"] == {"rack": "7", "zone": "b"}
    worker = system.control.state.settings.workers["a:1"]
    assert (worker.kv_events.endpoint, worker.kv_events.replay_endpoint) == ("tcp://a:5557", None)
    body = {"name": None, "weight": None, "labels": {"rack": None}, "kv_events": None}
    shown = (await client.patch(PATCH, json=body)).json()
    assert (shown["name"], shown["weight"], shown["role"], shown["labels"]) == (None, 1.0, "prefill", {"zone": "b"})
    assert system.control.state.settings.workers["a:1"].kv_events is None
    assert system.fleet.get("a:1") is endpoint, "its requests continue"


async def test_a_patch_drains_and_undrains(client, system):
    system.join("http://a:1")
    assert (await client.patch(PATCH, json={"maintenance": True})).json()["state"] == "draining"
    assert (await client.patch(PATCH, json={"maintenance": False})).json()["state"] != "draining"


async def test_a_patch_names_its_differences(client, system):
    system.join("http://a:1")
    answer = await client.patch(f"{PATCH}?dry_run=true", json={"labels": {"zone": "b"}, "weight": 2})
    assert {one["path"]: one.get("after") for one in answer.json()["differences"]} == {
        "workers[a:1].weight": 2.0,
        "workers[a:1].labels.zone": "b",
    }


async def test_a_merge_patch_may_be_declared_as_one(client, system):
    system.join("http://a:1")
    headers = {"content-type": "application/merge-patch+json"}
    assert (await client.patch(PATCH, content=b'{"weight":2}', headers=headers)).json()["weight"] == 2.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"weight": -1}, "$.weight"),
        ({"url": "http://b:1"}, "unknown field `url`"),
        ({"labels": {"lane": "fast"}}, "'fast' is no lane"),
        ({"kv_events": {"replay_endpoint": "tcp://a:1"}}, "missing required field `endpoint`"),
        ({"kv_events": {"endpoint": "x"}}, "is not a ZeroMQ address"),
        ({"name": "right"}, "is the name of http://b:1 already"),
    ],
)
async def test_a_patch_that_is_not_valid_is_refused(client, system, problem, body, said):
    await client.post("/admin/v1/workers", json={"url": "http://b:1", "name": "right"})
    system.join("http://a:1")
    before = system.control.state
    assert said in problem(await client.patch(PATCH, json=body), 422)[1]
    assert system.control.state is before


async def test_a_patch_of_no_worker_is_not_found(client, problem):
    assert problem(await client.patch(PATCH, json={"weight": 2}), 404)[0] == "not_found"


async def test_a_dry_run_names_paths_and_values(client, system):
    system.join("http://a:1")
    answer = await client.post("/admin/v1/workers/a:1/drain?dry_run=true")
    assert answer.json()["differences"] == [{"path": "workers[a:1].maintenance", "before": False, "after": True}]
    added = await client.post("/admin/v1/workers?dry_run=true", json=NEW)
    (one,) = added.json()["differences"]
    assert (one["path"], "before" in one, one["after"]["api_key"]) == ("workers[c:1]", False, "***")


async def test_dry_run_takes_true_or_false_and_only_on_changes(client, system, problem):
    system.join("http://a:1")
    detail = problem(await client.post("/admin/v1/workers/a:1/drain?dry_run=1"), 422)[1]
    assert detail == "dry_run is '1'; write true or false"
    assert problem(await client.get("/admin/v1/workers?dry_run=true"), 400)[0] == "unknown_parameter"


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_stale_if_match_is_refused(client, system, problem, method, path, body):
    system.join("http://a:1")
    headers = {"if-match": '"x.1"'}
    code, detail = problem(await client.request(method, path, json=body, headers=headers), 412)
    assert (code, "GET it again" in detail) == ("state_changed", True)
    assert system.control.state.version == 1
    headers = {"if-match": system.control.state.tag}
    assert (await client.request(method, path, json=body, headers=headers)).is_success


async def test_if_match_has_no_meaning_on_reads(client, problem):
    code, _ = problem(await client.get("/admin/v1/workers", headers={"if-match": "*"}), 501)
    assert code == "condition_not_supported"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(NotAppliedError("no memory"), 500, "not_applied"), (NotSavedError("disk full"), 507, "not_saved")],
)
async def test_a_change_that_fails_says_that_nothing_has_changed(client, system, problem, error, status, code):
    async def fail(change):
        raise error

    system.control.make = fail
    found, detail = problem(await client.put("/admin/v1/policy", json={"rule": "random"}), status)
    assert (found, str(error) in detail) == (code, True)


async def test_a_change_after_a_handover_is_refused(client, system, problem):
    system.join("http://a:1")
    await system.control.yield_state()
    assert problem(await client.post("/admin/v1/workers/a:1/drain"), 503)[0] == "handed_over"
