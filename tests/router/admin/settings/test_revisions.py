import pytest

NEW = {"url": "http://c:1", "api_key": "k-5371"}


@pytest.fixture
async def changed(client, system):
    system.join("http://a:1")
    await client.post("/admin/v1/workers", json=NEW)
    await client.put("/admin/v1/policy", json={"rule": "random"})
    await client.post("/admin/v1/workers/c:1/drain")
    return system


async def test_the_desired_state_says_what_the_api_changed(client, changed):
    answer = await client.get("/admin/v1/desired-state")
    document = answer.json()
    assert answer.headers["etag"] == changed.control.state.tag
    assert (document["version"], document["kept"]) == (4, False)
    assert document["settings"]["workers"]["c:1"]["maintenance"]
    assert document["settings"]["workers"]["c:1"]["api_key"] == "***"
    assert [one["path"] for one in document["changed_by_api"]] == ["workers[a:1]", "workers[c:1]", "policy"]
    assert "5371" not in answer.text


async def test_revisions_come_newest_first_and_in_pages(client, changed):
    listed = (await client.get("/admin/v1/revisions?limit=3")).json()
    assert [one["number"] for one in listed["revisions"]] == [4, 3, 2]
    assert [one["what"] for one in listed["revisions"]] == [
        "drained worker c:1",
        "chose policy random",
        "added worker c:1",
    ]
    assert {one["source"] for one in listed["revisions"]} == {"api"}
    rest = (await client.get("/admin/v1/revisions", params={"cursor": listed["next"]})).json()
    assert ([one["number"] for one in rest["revisions"]], rest["next"]) == ([1], None)
    assert rest["revisions"][0]["source"] == "start"


async def test_a_revision_shows_its_differences_without_secrets(client, changed):
    answer = await client.get("/admin/v1/revisions/2")
    (one,) = answer.json()["differences"]
    assert (one["path"], one["after"]["api_key"], answer.json()["changes"]) == ("workers[c:1]", "***", 1)
    assert "5371" not in answer.text


async def test_a_revision_is_restored_as_a_new_one(client, changed):
    tried = (await client.post("/admin/v1/revisions/2/restore?dry_run=true")).json()
    assert [one["path"] for one in tried["differences"]] == ["workers[c:1].maintenance", "policy.rule"]
    assert (tried["version"], changed.core.policies.default.spec.rule) == (4, "random")
    document = (await client.post("/admin/v1/revisions/2/restore")).json()
    assert (document["version"], document["differences"]) == (5, tried["differences"])
    assert changed.core.policies.default.spec.rule == "marginal_cost"
    assert not changed.fleet.get("c:1").draining
    newest = (await client.get("/admin/v1/revisions?limit=1")).json()["revisions"][0]
    assert (newest["source"], newest["what"]) == ("restore", "restored revision 2")
    await client.post("/admin/v1/revisions/4/restore")
    assert changed.core.policies.default.spec.rule == "random"
    assert changed.fleet.get("c:1").draining


@pytest.mark.parametrize("number", ["99", "0", "x", "1" * 30, "-1"])
async def test_a_revision_that_is_not_there_is_named(client, changed, problem, number):
    for method, path in (("GET", f"/admin/v1/revisions/{number}"), ("POST", f"/admin/v1/revisions/{number}/restore")):
        detail = problem(await client.request(method, path), 404)[1]
        assert f"there is no revision {number[:40]!r}".replace("'", "") in detail.replace("'", "")
        assert "GET /admin/v1/revisions lists all that are kept" in detail


async def test_a_restore_takes_if_match(client, changed, problem):
    assert problem(await client.post("/admin/v1/revisions/1/restore", headers={"if-match": '"x"'}), 412)
    headers = {"if-match": changed.control.state.tag}
    assert (await client.post("/admin/v1/revisions/1/restore", headers=headers)).status_code == 200
