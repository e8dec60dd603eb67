import pytest

PUT = {"rule": "round_robin"}


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8001", "localhost", "LOCALHOST:8001", "localhost.", "[::1]:8001", "10.1.2.3:8001",
        "router.example:8001",
    ],
)  # fmt: skip
async def test_an_allowed_host_is_answered(client, host):
    assert (await client.get("/livez", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8001", "localhost.evil.example", "127.0.0.1.nip.example", "",
        "127.0.0.1:80:evil", "127.0.0.1:evil", "[::1]evil.example",
    ],
)  # fmt: skip
async def test_another_host_is_refused(client, problem, host):
    code, detail = problem(await client.get("/admin/v1/workers", headers={"host": host}), 403)
    assert code == "host_not_allowed"
    assert "admin_hosts" in detail


@pytest.mark.parametrize("name", ["host", "origin"])
@pytest.mark.parametrize("second", ["127.0.0.1:8001", "evil.example"])
async def test_a_repeated_header_is_refused(client, problem, name, second):
    first = "127.0.0.1:8001"
    if name == "origin":
        first, second = f"http://{first}", f"http://{second}"
    headers = [(name, first), (name, second)]
    assert problem(await client.get("/admin/v1/workers", headers=headers), 403)[0] == f"{name}_not_allowed"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://[x", "http://127.0.0.1:9999", "http://localhost:8001"]
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_an_origin_of_another_site_is_refused(client, problem, origin, method):
    response = await client.request(method, "/admin/v1/policy", headers={"origin": origin}, json=PUT)
    assert problem(response, 403)[0] == "origin_not_allowed"


async def test_an_origin_equal_to_the_host_is_served(client):
    headers = {"origin": "http://127.0.0.1:8001"}
    assert (await client.put("/admin/v1/policy", headers=headers, json=PUT)).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""])
async def test_a_body_must_be_declared_as_json(client, problem, kind):
    response = await client.put("/admin/v1/policy", headers={"content-type": kind}, content=b'{"rule": "random"}')
    assert problem(response, 415)[0] == "unsupported_media_type"


async def test_an_encoded_body_is_refused(client, problem):
    response = await client.put("/admin/v1/policy", headers={"content-encoding": "gzip"}, json=PUT)
    assert problem(response, 415)[0] == "unsupported_content_encoding"
    assert response.headers["accept-encoding"] == "identity"
    assert (await client.put("/admin/v1/policy", headers={"content-encoding": "identity"}, json=PUT)).status_code == 200


async def test_a_body_without_a_type_is_refused(client, problem):
    request = client.build_request("PUT", "/admin/v1/policy", content=b'{"rule": "random"}')
    request.headers.pop("content-type", None)
    assert problem(await client.send(request), 415)[0] == "unsupported_media_type"


async def test_an_empty_form_post_is_refused(client, problem):
    headers = {"content-type": "application/x-www-form-urlencoded"}
    problem(await client.post("/admin/v1/workers/a:1/drain", headers=headers), 415)


async def test_a_request_without_body_needs_no_content_type(client, system):
    worker = system.join("http://a:1")
    assert (await client.post(f"/admin/v1/workers/{worker}/drain")).status_code == 200


async def test_json_with_a_charset_is_json(client):
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    response = await client.put("/admin/v1/policy", headers=headers, content=b'{"rule": "random"}')
    assert response.status_code == 200


async def test_a_preflight_is_refused(client, problem):
    headers = {"origin": "http://evil.example", "access-control-request-method": "PUT"}
    response = await client.options("/admin/v1/policy", headers=headers)
    assert not [name for name in response.headers if name.startswith("access-control")]
    problem(response, 403)
