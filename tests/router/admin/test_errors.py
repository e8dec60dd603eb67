from types import SimpleNamespace

import pytest

from router.admin.table import OPERATIONS
from router.process.children.admin_operations import operations_for_all


async def test_an_unknown_path_is_a_404_problem(client, problem):
    assert problem(await client.get("/admin/v1/nothing"), 404)[0] == "path_not_found"
    assert problem(await client.get("/v1/models"), 404)[0] == "path_not_found"


async def test_wrong_method_names_the_right_ones(client, problem):
    response = await client.delete("/admin/v1/policy")
    assert problem(response, 405)[0] == "method_not_allowed"
    assert {"GET", "PUT"} <= {name.strip() for name in response.headers["allow"].split(",")}


async def test_a_bug_is_a_problem_too_and_is_logged(client, system, problem, monkeypatch, caplog):
    monkeypatch.setattr(system.control, "make", lambda *_: 1 / 0)
    response = await client.put("/admin/v1/policy", json={"rule": "random"})
    code, detail = problem(response, 500)
    assert code == "internal_error"
    assert "ZeroDivisionError in PUT /admin/v1/policy" in detail
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"\xff", 400, "invalid_json"),
        (b'{"rule": "random", "params": {"a": ' + b"[" * 100_000, 400, "invalid_json"),
        (b"[]", 422, "invalid_value"),
        (b"{}", 422, "invalid_value"),
        (b'{"name": 5}', 422, "invalid_value"),
        (b'{"rule": "random", "parms": {}}', 422, "invalid_value"),
        (b'{"rule": "random", "params": "' + b"x" * 1_000_000 + b'"}', 413, "body_too_large"),
    ],
    ids=["empty", "cut", "binary", "deep", "list", "missing", "type", "unknown", "large"],
)
async def test_a_body_that_is_not_valid_is_refused_with_a_stable_code(client, system, problem, body, status, code):
    response = await client.put("/admin/v1/policy", content=body, headers={"content-type": "application/json"})
    assert problem(response, status)[0] == code
    assert system.core.policies.default.spec.rule == "marginal_cost"


def called(operation):
    return operation.path.replace("{id}", "a:1").replace("{id:path}", "a:1")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_every_operation_refuses_what_it_would_ignore(client, problem, operation):
    async def call(params=(), headers=()):
        body = {"json": {}} if operation.takes is not None else {}
        return await client.request(operation.method, called(operation), params=params, headers=dict(headers), **body)

    code, detail = problem(await call([("colour", "red")]), 400)
    assert code == "unknown_parameter"
    assert "'colour'" in detail
    for query in operation.query:
        assert query.name in detail
        again = problem(await call([(query.name, "1"), (query.name, "2")]), 400)
        assert again[0] == "repeated_parameter"
    names = ["If-Match"] if not operation.changes_state else []
    names += ["if-none-match", "If-Unmodified-Since"] if operation.method != "GET" else []
    for name in names:
        code, detail = problem(await call(headers=[(name, '"1"')]), 501)
        assert code == "condition_not_supported"
        assert "not supported" in detail


async def test_a_refused_change_changes_nothing(client, system, problem):
    await client.post("/admin/v1/workers", json={"url": "http://a:1"})
    problem(await client.post("/admin/v1/workers/a:1/drain", params={"dry": "true"}), 400)
    problem(await client.delete("/admin/v1/workers/a:1", params={"dry": "true"}), 400)
    problem(await client.delete("/admin/v1/workers/a:1", headers={"if-none-match": "*"}), 501)
    assert not system.fleet.get("a:1").draining


async def test_the_description_itself_takes_no_parameters(client, problem):
    assert problem(await client.get("/admin/v1/openapi.json", params={"v": "2"}), 400)[0] == "unknown_parameter"
    assert (await client.get("/admin/v1/openapi.json", headers={"if-none-match": '"1"'})).status_code == 200


def test_the_operations_of_several_processes_are_the_same():
    assert {(one.method, one.path, one.query) for one in operations_for_all(SimpleNamespace())} == {
        (one.method, one.path, one.query) for one in OPERATIONS
    }
