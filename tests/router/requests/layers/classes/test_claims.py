import pytest

from router.config.model import TenantConfig
from router.placement.admission.classes import RequestClass
from router.requests.layers.classes.claims import claim_of
from router.requests.preview import _head
from router.security.callers import Caller, TenantUsage

CHAT, BATCH, DEFAULT = RequestClass("chat"), RequestClass("batch", 0.0), RequestClass("default")
CLASSES = {one.name: one for one in (CHAT, BATCH, DEFAULT)}


def claim(headers=None, *, may=(), tenant=None, by_route=None, key="key", by_tier=None):
    account = None if tenant is None else TenantUsage("red", tenant)
    caller = Caller(key, frozenset(may), account, None)
    return claim_of(_head("/v1/completions", headers or {}, 0), caller, CLASSES, DEFAULT, by_route, by_tier)


def test_without_a_claim_the_route_decides_then_the_tenant_then_the_default():
    tenant = TenantConfig(classes=("batch", "chat"), weight=2.0)
    assert claim().of is DEFAULT
    assert claim(tenant=tenant).of is BATCH
    assert claim(tenant=tenant, by_route="chat").of is CHAT
    assert (claim(tenant=tenant).tenant, claim(tenant=tenant).weight, claim().tenant) == ("red", 2.0, "key")


@pytest.mark.parametrize(
    "header",
    [
        "x-request-class",
        "x-llm-d-inference-objective",
        "x-gateway-inference-objective",
        "x-dynamo-meta-policy-class",
        "X-SMG-Priority",
    ],
)
def test_a_caller_names_the_classes_of_its_tenant_and_a_trusted_one_all(header):
    tenant = TenantConfig(classes=("chat", "default"))
    assert claim({header: "Default"}, tenant=tenant).of is DEFAULT
    assert claim({header: "batch"}, tenant=tenant).of is CHAT
    assert claim({header: "batch"}).of is DEFAULT
    assert claim({header: "batch"}, may=("priority",)).of is BATCH
    assert claim({header: "nonsense"}, may=("priority",), by_route="chat").of is CHAT


def test_deadlines_and_fairness_ids_are_heard_of_trusted_callers_alone():
    headers = {
        "x-llm-d-slo-ttft-ms": "250",
        "x-llm-d-inference-ttl": "1m30s",
        "x-llm-d-inference-fairness-id": "agent-7" * 50,
    }
    ignored, heard = claim(headers), claim(headers, may=("priority",))
    assert (ignored.ttft_s, ignored.ttl_s, ignored.tenant) == (None, None, "key")
    assert (heard.ttft_s, heard.ttl_s) == (0.25, 90.0)
    assert heard.tenant.startswith("key/agent-7") and len(heard.tenant) == len("key/") + 64
    assert (heard.due_after_s, heard.longest_wait_s) == (0.25, 90.0)


@pytest.mark.parametrize("text", ["", "5", "soon", "1s!", "-1s", "1e3s", "0s"])
def test_an_invalid_duration_is_no_deadline(text):
    assert claim({"x-llm-d-inference-ttl": text}, may=("priority",)).ttl_s is None


@pytest.mark.parametrize("text", ["", "soon", "-1", "1e9"])
def test_an_invalid_time_is_no_service_level(text):
    assert claim({"x-dynamo-slo-ttft-ms": text}, may=("priority",)).ttft_s is None


def test_a_service_tier_names_a_class_after_the_header_and_only_what_the_caller_may_name():
    tenant = TenantConfig(classes=("chat", "batch"))
    assert claim(tenant=tenant, by_tier="batch").of is BATCH
    assert claim(by_tier="batch").of is DEFAULT
    assert claim(by_tier="batch", by_route="chat", may=("priority",)).of is BATCH
    assert claim({"x-request-class": "chat"}, tenant=tenant, by_tier="batch").of is CHAT
