import json

from openapi_spec_validator import validate

from router.admin.openapi import openapi_document, openapi_path
from router.admin.table import OPERATIONS


async def test_openapi_is_served_and_complete(client):
    served = (await client.get("/admin/v1/openapi.json")).json()
    assert served == json.loads(json.dumps(openapi_document()))
    listed = {(method.upper(), path) for path, item in served["paths"].items() for method in item}
    assert listed == {(one.method, openapi_path(one)) for one in OPERATIONS}


def test_the_document_is_valid_openapi():
    document = json.loads(json.dumps(openapi_document()))
    assert document["openapi"] == "3.1.0"
    validate(document)  # raises with the place of a mistake; a reference that does not resolve is one


def test_every_field_that_is_a_setting_says_what_it_means():
    schemas = openapi_document()["components"]["schemas"]
    settings = [name for name in schemas if name.endswith("Config") or name.removesuffix("Change") not in ("", name)]
    assert {"RouteConfig", "PolicyConfig", "LimitsConfig", "RateLimitsConfig"} <= set(settings)
    silent = [
        f"{name}.{field}"
        for name in (*settings, "NewPolicy", "PolicyQuestion", "NewWorker")
        for field, about in schemas[name]["properties"].items()
        if not about.get("description")
    ]
    assert silent == []


def test_operation_ids_are_unique():
    document = openapi_document()
    ids = [item["operationId"] for path in document["paths"].values() for item in path.values()]
    assert len(ids) == len(set(ids))


async def test_every_operation_is_routed(client):
    for one in OPERATIONS:
        path = openapi_path(one).replace("{id}", "a:1").replace("{name}", "default").replace("{number}", "1")
        response = await client.request(one.method, path)
        assert response.status_code not in (404, 405) or "lists all" in response.json()["detail"], one.path
