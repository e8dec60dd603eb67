"""Objects of Kubernetes, and a source that follows them at a stub of the API server."""

import pytest

from backends.discovery.kubernetes import reflector
from backends.discovery.kubernetes.api import Access
from backends.discovery.kubernetes.source import KubernetesSource, Wanted
from tests.backends.discovery.conftest import followed
from tests.backends.discovery.kubernetes.api_server import ApiServerStub


def pod(name, address, *, ready=True, labels=None, annotations=None, going=False, ports=()):
    metadata = {"name": name, "labels": {"app": "vllm", **(labels or {})}, "annotations": annotations or {}}
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    containers = [{"ports": [{"name": name, "containerPort": port} for name, port in ports]}]
    return {
        "metadata": metadata,
        "spec": {"containers": containers},
        "status": {"podIP": address, "conditions": conditions},
    }


def endpoint(address, name=None, **conditions):
    target = {} if name is None else {"targetRef": {"kind": "Pod", "name": name}}
    return {"addresses": [address], "conditions": {"ready": True, **conditions}, **target}


def endpoint_slice(name, *endpoints, ports=(("http", 8000),), labels=None, annotations=None):
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/service-name": "vllm", **(labels or {})},
            "annotations": annotations or {},
        },
        "ports": [{"name": name, "port": port} for name, port in ports],
        "endpoints": list(endpoints),
    }


def access(api, **changed):
    return Access(**{"url": api.url, "token_file": None, "ca_file": None, **changed})


def following(api, access_to=None, **wanted):
    return followed(KubernetesSource(Wanted(**{"namespace": "default", **wanted}), access_to or access(api)))


@pytest.fixture(params=["event"])
async def api(request, monkeypatch):
    monkeypatch.setattr(reflector, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(reflector, "STEADY_S", 0.05)
    stub = ApiServerStub(watch_410=request.param)
    stub.objects["pods"] = {}
    await stub.start()
    yield stub
    await stub.stop()
