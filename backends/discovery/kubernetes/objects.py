"""Read workers out of the objects of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from backends.discovery.fields import PREFIX, described, port_of
from backends.discovery.kubernetes.api import Json
from backends.discovery.kubernetes.reflector import key_of
from backends.discovery.llmd_endpoints import ROLE_LABEL, role_of
from backends.discovery.registration import Registration
from backends.worker import parse_endpoint

ACTIVE_PORTS = "inference.networking.k8s.io/active-ports"
"""Annotation of a pod of an InferencePool: those of the pool's ports that it serves."""
PORT = "port"
"""Field with a pod's port, in place of the one of the settings."""
_PORT_NAME = "http"
_DEFAULT_PORT = 8_000
"""vLLM's."""

Found = Iterator[Registration | str]
"""Workers, and what is wrong with objects that are none."""


def slice_workers(item: Json, port: str | None) -> Found:
    """Yield the workers of one EndpointSlice that are ready. `port` is the name or the number of one of its ports."""
    fields = fields_of(item)
    try:
        number = _slice_port(item, port)
    except ValueError as error:
        yield f"endpointslice {_name(item)}: {error}"
        return
    for endpoint in _objects(item.get("endpoints")):
        conditions = _object(endpoint.get("conditions"))
        if conditions.get("ready") is False or conditions.get("terminating") is True:
            continue
        target = _object(endpoint.get("targetRef")).get("name")
        named = {**fields, **({"name": target} if isinstance(target, str) else {})}
        for address in endpoint.get("addresses") or ():
            yield from _worker(f"endpointslice {_name(item)}", str(address), number, named)


def pod_workers(item: Json, port: str | None) -> Found:
    address = _ready_address(item)
    if address is None:
        return
    fields = {"name": _name(item), **fields_of(item)}
    try:
        number = _pod_port(item, fields.pop(PORT, port))
    except ValueError as error:
        yield f"pod {_name(item)}: {error}"
        return
    yield from _worker(f"pod {_name(item)}", address, number, fields)


def pool_workers(item: Json, ports: Iterable[int]) -> Found:
    """Yield the workers of a pod of an InferencePool: one for each port of the pool that the pod serves."""
    address = _ready_address(item)
    if address is None:
        return
    annotation = _texts(_object(item.get("metadata")).get("annotations")).get(ACTIVE_PORTS)
    try:
        active = None if annotation is None else {port_of(ACTIVE_PORTS, one.strip()) for one in annotation.split(",")}
    except ValueError as error:
        yield f"pod {_name(item)}: {error}"
        return
    fields = fields_of(item)
    fields.pop(PORT, None)
    chosen = [port for port in ports if active is None or port in active]
    for port in chosen:
        name = _name(item) if len(chosen) == 1 else f"{_name(item)}-{port}"
        yield from _worker(f"pod {_name(item)}", address, port, {"name": name, **fields})


def pool_of(item: Json) -> tuple[dict[str, str], tuple[int, ...]]:
    """Return the labels that select the pods of an InferencePool, and its ports.

    Raises:
        ValueError: the pool names none.
    """
    spec = _object(item.get("spec"))
    selector = _object(spec.get("selector"))
    labels = _texts(selector.get("matchLabels", selector))  # v1alpha2 has the labels themselves
    ports = [one.get("number") for one in _objects(spec.get("targetPorts"))] or [spec.get("targetPortNumber")]
    numbers = tuple(port for port in ports if isinstance(port, int))
    if not labels or not numbers:
        raise ValueError(f"inferencepool {_name(item)} has no selector or no target port")
    return labels, numbers


def fields_of(item: Json) -> dict[str, str]:
    """Return the fields that an object's labels and annotations carry. Annotations come before labels.

    The label with llm-d's role keeps its name.
    """
    metadata = _object(item.get("metadata"))
    found = {**_texts(metadata.get("labels")), **_texts(metadata.get("annotations"))}
    return {
        name.removeprefix(PREFIX): text for name, text in found.items() if name.startswith(PREFIX) or name == ROLE_LABEL
    }


def _worker(place: str, address: str, port: int, fields: Mapping[str, str]) -> Found:
    try:
        role = None if "role" in fields else role_of(fields)
        worker = described(address, port, fields if role is None else {**fields, "role": role})
        parse_endpoint(worker.url)
    except ValueError as error:
        yield f"{place}: {error}"
    else:
        yield worker


def _ready_address(pod: Json) -> str | None:
    status, metadata = _object(pod.get("status")), _object(pod.get("metadata"))
    ready = any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in _objects(status.get("conditions"))
    )
    address = status.get("podIP")
    going = metadata.get("deletionTimestamp") is not None
    return address if ready and not going and isinstance(address, str) else None


def _slice_port(item: Json, wanted: str | None) -> int:
    ports = {str(one.get("name") or ""): one.get("port") for one in _objects(item.get("ports"))}
    numbers = {name: port for name, port in ports.items() if isinstance(port, int)}
    if wanted is None:
        if len(numbers) == 1:
            return next(iter(numbers.values()))
        wanted = _PORT_NAME
    if wanted in numbers:
        return numbers[wanted]
    if wanted.isdecimal() and int(wanted) in numbers.values():
        return int(wanted)
    raise ValueError(f"no port {wanted!r} among {', '.join(sorted(numbers)) or 'none'}")


def _pod_port(pod: Json, wanted: str | None) -> int:
    if wanted is not None and wanted.isdecimal():
        return port_of("the port", wanted)
    spec = _object(pod.get("spec"))
    containers = [*_objects(spec.get("containers")), *_objects(spec.get("initContainers"))]
    ports = [one for container in containers for one in _objects(container.get("ports"))]
    named = {str(one.get("name")): one.get("containerPort") for one in reversed(ports)}
    if wanted is not None and wanted not in named:
        raise ValueError(f"no container has a port {wanted!r}")
    found = named.get(wanted or _PORT_NAME) or (ports[0].get("containerPort") if ports else _DEFAULT_PORT)
    return port_of("the port", str(found))


def _name(item: Json) -> str:
    return key_of(item)[1]


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> dict[str, str]:
    return {name: text for name, text in _object(value).items() if isinstance(text, str)}
