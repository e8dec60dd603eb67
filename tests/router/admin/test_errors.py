import pytest


async def test_unknown_path(client, problem):
    assert problem(await client.get("/admin/v1/nothing"), 404)[0] == "path_not_found"
    assert problem(await client.get("/v1/models"), 404)[0] == "path_not_found"


async def test_wrong_method_names_the_right_ones(client, problem):
    response = await client.delete("/admin/v1/policy")
    assert problem(response, 405)[0] == "method_not_allowed"
    assert {"GET", "PUT"} <= {name.strip() for name in response.headers["allow"].split(",")}


async def test_a_bug_is_a_problem_too_and_is_logged(client, system, problem, monkeypatch, caplog):
    monkeypatch.setattr(system.dispatcher, "set_policy", lambda *_: 1 / 0)
    response = await client.put("/admin/v1/policy", json={"name": "random"})
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
        (b'{"name": "random", "params": {"a": ' + b"[" * 100_000, 400, "invalid_json"),
        (b"[]", 422, "invalid_value"),
        (b"{}", 422, "invalid_value"),
        (b'{"name": 5}', 422, "invalid_value"),
        (b'{"name": "random", "parms": {}}', 422, "invalid_value"),
        (b'{"name": "random", "params": "' + b"x" * 1_000_000 + b'"}', 413, "body_too_large"),
    ],
    ids=["empty", "cut", "binary", "deep", "list", "missing", "type", "unknown", "large"],
)
async def test_bodies_that_will_not_do(client, system, problem, body, status, code):
    response = await client.put("/admin/v1/policy", content=body, headers={"content-type": "application/json"})
    assert problem(response, status)[0] == code
    assert system.dispatcher.policy_name == "marginal_cost"
