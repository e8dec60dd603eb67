"""The OpenAPI 3.1 document, generated from the table of operations and the types of the documents."""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

import msgspec

from router.admin.documents import Body, ChangeDocument, ProblemDocument
from router.admin.operations import Operation
from router.admin.settings.desired_state import ReloadDocument
from router.admin.table import OPEN_PATHS, OPERATIONS
from router.admin.watch import MEDIA_TYPE as EVENT_STREAM
from router.config.model import Section
from router.config.sample import descriptions

OPENAPI_PATH = "/admin/v1/openapi.json"
_SUFFIX = "Document"
_REFERENCE = "#/components/schemas/"
_EVERYWHERE = {
    400: "a query parameter is unknown or comes twice",
    403: "the Host or Origin header is not allowed, or the token's role is too low",
    501: "the request has an If-Match header, or one that changes something has If-None-Match or If-Unmodified-Since",
}
_CHANGE = {
    412: "the If-Match header names another version of the desired state",
    422: "dry_run is not true or false",
    500: "a process cannot be brought to the new state; nothing has changed",
    501: "the request has an If-None-Match or If-Unmodified-Since header",
    507: "the change cannot be saved in state_dir; it was undone",
}
"""Errors of operations that change the desired state."""
_WATCHED = {429: "there are too many watchers"}
_NEGOTIATED = {406: "the Accept header does not allow the answer's media type"}
_GUARDED = {401: "an admin token is set, and the request does not bring it"}


def openapi_document() -> dict[str, Any]:
    kinds = [kind for operation in OPERATIONS for kind in (operation.takes, operation.gives) if kind is not None]
    by_kind, components = _schemas([ProblemDocument, ChangeDocument, *kinds])
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(openapi_path(operation), {})[operation.method.lower()] = _describe(operation, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Warmroute admin API", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {name: _described(name, schema) for name, schema in components.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def schema_name(kind: type[Any]) -> str:
    """Return the name of a document in the API: the class's, without the suffix that tells it from other classes."""
    return kind.__name__.removesuffix(_SUFFIX)


def _schemas(kinds: list[type[Any]]) -> tuple[dict[type[Any], dict[str, Any]], dict[str, Any]]:
    """Return each kind's schema, and the components that these refer to."""
    schemas, components = msgspec.json.schema_components(kinds, ref_template=f"{_REFERENCE}{{name}}")
    named = {name.removesuffix(_SUFFIX): _renamed(component) for name, component in components.items()}
    return dict(zip(kinds, map(_renamed, schemas), strict=True)), named


def _renamed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_renamed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    shorter = {key: _renamed(value) for key, value in schema.items()}
    if "$ref" in shorter:
        shorter["$ref"] = shorter["$ref"].removesuffix(_SUFFIX)
    if "title" in shorter and isinstance(shorter["title"], str):
        shorter["title"] = shorter["title"].removesuffix(_SUFFIX)
    return shorter


def _described(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with its description, and those of its fields if they are settings."""
    described = dict(schema)
    if text := schema.get("description"):
        described["description"] = cleandoc(text)
    if section := _sections().get(name):
        texts = descriptions(section)
        fields = schema["properties"].items()
        described["properties"] = {field: {**about, "description": texts[field]} for field, about in fields}
    return described


@cache
def _sections() -> dict[str, type[Section]]:
    """Return the section of the settings that describes each schema whose fields are settings."""
    own = {section.__name__: section for section in Section.__subclasses__()}
    bodies = [body for each in Body.__subclasses__() for body in (each, *each.__subclasses__())]
    return own | {schema_name(body): body.settings for body in bodies if body.settings is not None}


def openapi_path(operation: Operation) -> str:
    """Return the path with plain ``{name}`` parameters, without Starlette's converters."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", operation.path)


def problems_of(operation: Operation) -> dict[int, str]:
    query = {422: "a query parameter has a value that is not valid"} if operation.query else {}
    body = {
        400: f"{_EVERYWHERE[400]}, or the body is not JSON",
        413: "the body is too large",
        415: "the body is not declared as JSON",
        422: "a field is missing, unknown, or has a value that is not valid",
    }
    everywhere = _EVERYWHERE | ({} if operation.path in OPEN_PATHS else _GUARDED)
    change = _CHANGE if operation.changes_state else {}
    watch = _WATCHED if operation.watch is not None else {}
    taken = body if operation.takes else {}
    negotiated = _NEGOTIATED if operation.negotiates else {}
    found = {**everywhere, **negotiated, **query, **change, **watch, **taken, **operation.problems}
    return dict(sorted(found.items()))


def _describe(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    described["security"] = [{}] if operation.path in OPEN_PATHS else [{"token": [operation.role]}, {}]
    if parameters := [*_path_parameters(operation), *_query_parameters(operation), *_conditions(operation)]:
        described["parameters"] = parameters
    if operation.takes is not None:
        content = {"application/json": {"schema": schemas[operation.takes]}}
        if operation.method == "PATCH":
            content["application/merge-patch+json"] = content["application/json"]
        described["requestBody"] = {"required": True, "content": content}
    problem = {"application/problem+json": {"schema": schemas[ProblemDocument]}}
    described["responses"] = _successes(operation, schemas) | {
        str(status): {"description": when, "content": problem} for status, when in problems_of(operation).items()
    }
    return described


def _successes(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    """Return the good answers. A dry run answers 200 with a document of its own."""
    good = (operation.status, *operation.further)
    answers = {str(status.value): {**_success(operation, schemas), "description": status.phrase} for status in good}
    if not operation.changes_state or operation.gives in (ChangeDocument, ReloadDocument):
        return answers
    dry = schemas[ChangeDocument]
    if operation.status is HTTPStatus.OK:
        dry = {"anyOf": [schemas[operation.gives], dry]}
    content = {"application/json": {"schema": dry}}
    return {"200": {"description": HTTPStatus.OK.phrase, "content": content}} | {
        status: answer for status, answer in answers.items() if status != "200"
    }


def _success(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": operation.status.phrase}
    if operation.status is not HTTPStatus.NO_CONTENT:
        schema = schemas[operation.gives] if operation.gives is not None else {"type": "string"}
        described["content"] = {operation.media_type: {"schema": schema}}
        if operation.watch is not None:
            described["content"][EVENT_STREAM] = {"schema": {"type": "string"}}
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", openapi_path(operation))
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _conditions(operation: Operation) -> list[dict[str, Any]]:
    meaning = "entity tag of the desired state that the change is based on"
    header = {"name": "If-Match", "in": "header", "description": meaning, "schema": {"type": "string"}}
    return [header] if operation.changes_state else []


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": query.name,
            "in": "query",
            "description": query.summary,
            "schema": query.schema(),
        }
        for query in operation.query
    ]
