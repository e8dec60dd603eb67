"""The Accept header: every operation refuses one that does not allow its answer, and does nothing then."""

import pytest

from router.admin.http.negotiation import accepts
from router.admin.openapi import OPENAPI_PATH
from router.admin.table import OPERATIONS

JSON = "application/json"


@pytest.mark.parametrize(
    ("accept", "allowed"),
    [
        ("", True),
        ("*/*", True),
        ("application/*", True),
        ("Application/JSON; charset=utf-8", True),
        ("text/html, application/json;q=0.1", True),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", False),
        ("application/problem+json", False),
        ("*/*;q=0", False),
        ("*/*, application/json;q=0", False),
        ("application/*;q=0, */*", False),
        ("application/json ; q = 0", False),
        ("application/json;q=x", True),
        ("application/json;q=0, application/json", True),
        (", ;;, nothing", True),
        ("text/html;x=\"a,b/c\"", False),
    ],
)  # fmt: skip
def test_the_most_specific_range_decides(accept, allowed):
    assert accepts(accept, JSON) is allowed


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.negotiates], ids=lambda operation: operation.name
)
async def test_every_operation_refuses_an_accept_header_that_it_cannot_serve(client, system, problem, operation):
    version = system.control.state.version
    body = {"json": {}} if operation.takes is not None else {}
    path = operation.path.replace("{id}", "a:1").replace("{name}", "n").replace("{name:path}", "n")
    response = await client.request(
        operation.method, path.replace("{number}", "1"), headers={"accept": "text/html"}, **body
    )
    code, detail = problem(response, 406)
    assert code == "not_acceptable"
    assert JSON in detail and "'text/html'" in detail
    assert system.control.state.version == version


async def test_a_refused_change_changes_nothing_and_is_audited(client, system, problem):
    await client.post("/admin/v1/workers", json={"url": "http://a:1"})
    problem(await client.post("/admin/v1/workers/a:1/drain", headers={"accept": "text/*"}), 406)
    problem(await client.delete("/admin/v1/workers/a:1", headers={"accept": "text/*"}), 406)
    assert not system.fleet.get("a:1").draining
    newest = (await client.get("/admin/v1/audit")).json()["entries"][0]
    assert (newest["outcome"], newest["code"]) == ("refused", "not_acceptable")


async def test_a_watch_is_an_event_stream_and_a_list_is_not(client, problem):
    lists = {"accept": "text/event-stream"}
    _, detail = problem(await client.get("/admin/v1/workers", headers=lists), 406)
    assert "?watch=true" in detail
    problem(await client.get("/admin/v1/workers?watch=true", headers={"accept": JSON}), 406)
    assert (await client.head("/admin/v1/workers?watch=true", headers={"accept": JSON})).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/metrics"])
async def test_probes_and_scrapes_are_answered_whatever_accept_says(client, path):
    assert (await client.get(path, headers={"accept": "image/png"})).status_code == 200


async def test_the_description_is_json(client, problem):
    problem(await client.get(OPENAPI_PATH, headers={"accept": "text/html"}), 406)
    several = [("accept", "text/html"), ("accept", "application/*;q=0.1")]
    assert (await client.get(OPENAPI_PATH, headers=several)).status_code == 200
