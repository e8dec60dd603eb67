import pytest

from policies.registry import build_policy
from policies.spec import PolicySpec
from router.admin.observe import decisions


async def pages(client, path, entries, **query):
    """Follow `next` to the end and return every page's entries."""
    found, cursor = [], {}
    while cursor is not None:
        answer = await client.get(path, params={**query, **cursor})
        assert answer.status_code == 200, answer.text
        found.append(answer.json()[entries])
        cursor = answer.json()["next"] and {"cursor": answer.json()["next"]}
        assert len(found) < 100
    return found


async def request_ids(client, **query):
    listed = await pages(client, "/admin/v1/decisions", "decisions", **query)
    return [[decision["request_id"] for decision in page] for page in listed]


async def test_the_decision_log_comes_in_pages(client, system):
    system.join("http://a:1")
    for number in range(5):
        system.serve(f"r{number}")
    assert await request_ids(client, limit=2) == [["r4", "r3"], ["r2", "r1"], ["r0"]]
    assert await request_ids(client, limit=5) == [["r4", "r3", "r2", "r1", "r0"]]


async def test_later_decisions_do_not_move_a_page(client, system):
    system.join("http://a:1")
    for number in range(4):
        system.serve(f"r{number}")
    first = (await client.get("/admin/v1/decisions?limit=2")).json()
    system.serve("later")
    second = await client.get("/admin/v1/decisions", params={"limit": 9, "cursor": first["next"]})
    assert [decision["request_id"] for decision in second.json()["decisions"]] == ["r1", "r0"]


async def test_a_decision_names_the_cursor_that_continues_after_it(client, system):
    system.join("http://a:1")
    for number in range(3):
        system.serve(f"r{number}")
    newest, *_ = (await client.get("/admin/v1/decisions")).json()["decisions"]
    assert await request_ids(client, cursor=newest["cursor"]) == [["r1", "r0"]]


async def test_decisions_are_filtered(client, system):
    system.join("http://a:1")
    workers = {"r0": system.serve("r0"), "r1": system.serve("r1")}
    system.fleet.drain("a:1")
    system.join("http://a:2")
    workers["r2"] = system.serve("r2")
    system.core.policies.default.adopt(build_policy(PolicySpec("round_robin"), None), PolicySpec("round_robin"))
    ticket = system.core.dispatcher.dispatch(system.request("r3"), system.clock_s)
    for query, expected in [
        ({"request_id": "r1"}, ["r1"]),
        ({"worker": "a:1"}, ["r1", "r0"]),
        ({"worker": "a:1", "request_id": "r0"}, ["r0"]),
        ({"worker": "a:1#0"}, []),
        ({"model": "m"}, ["r3", "r2", "r1", "r0"]),
        ({"model": "other"}, []),
        ({"policy": "marginal_cost"}, ["r2", "r1", "r0"]),
        ({"policy": "round_robin"}, ["r3"]),
        ({"route": "default"}, ["r3", "r2", "r1", "r0"]),
        ({"route": "eval"}, []),
        ({"outcome": "running"}, ["r3"]),
        ({"outcome": "finished"}, ["r2", "r1", "r0"]),
        ({"outcome": "failed"}, []),
    ]:
        assert await request_ids(client, **query) == [expected], query
    assert set(workers.values()) == {"a:1", "a:2"}
    assert await request_ids(client, limit=1, outcome="finished") == [["r2"], ["r1"], ["r0"]]
    system.core.tickets.cancelled(ticket, system.clock_s)
    assert await request_ids(client, outcome="cancelled") == [["r3"]]


async def test_one_call_reads_a_bounded_part_of_the_log(client, system, monkeypatch):
    monkeypatch.setattr(decisions, "READ_AT_MOST", 3)
    system.join("http://a:1")
    for number in range(8):
        system.serve(f"r{number}")
    assert await request_ids(client, request_id="r1") == [[], [], ["r1"]]
    assert await request_ids(client, request_id="r7", limit=1) == [["r7"], [], [], []]


@pytest.mark.parametrize(
    ("query", "fix"),
    [
        ({"outcome": "lost"}, "write running or finished or cancelled or failed"),
        ({"model": ""}, "write a value"),
        ({"cursor": "nonsense"}, "write `next`"),
        ({"cursor": "\u00e4"}, "write `next`"),
        ({"cursor": "W10"}, "write `next`"),
        ({"cursor": ""}, "write a value"),
    ],
)
async def test_a_wrong_value_is_refused_with_the_fix(client, problem, query, fix):
    code, detail = problem(await client.get("/admin/v1/decisions", params=query), 422)
    assert code == "invalid_value"
    assert fix in detail


async def test_an_unknown_parameter_is_refused_with_the_known_ones(client, problem):
    code, detail = problem(await client.get("/admin/v1/decisions?worker_id=a:1"), 400)
    assert code == "unknown_parameter"
    assert "limit, cursor, request_id, worker, model, route, policy, outcome" in detail


async def test_a_page_of_workers_stays_when_others_join_or_leave_and_its_cursor_expires(client, system, problem):
    for port in range(1, 5):
        system.join(f"http://a:{port}")
    listed = await pages(client, "/admin/v1/workers", "workers", limit=3)
    assert [[worker["id"] for worker in page] for page in listed] == [["a:1", "a:2", "a:3"], ["a:4"]]
    first = (await client.get("/admin/v1/workers?limit=2")).json()
    await client.delete("/admin/v1/workers/a:1")
    system.join("http://a:9")
    second = await client.get("/admin/v1/workers", params={"cursor": first["next"]})
    assert [worker["id"] for worker in second.json()["workers"]] == ["a:3", "a:4", "a:9"]
    await client.delete("/admin/v1/workers/a:2")
    code, detail = problem(await client.get("/admin/v1/workers", params={"cursor": first["next"]}), 410)
    assert (code, "begin again" in detail) == ("cursor_expired", True)
