import pytest

from backends.discovery.kubernetes.objects import pod_workers, pool_of, pool_workers, slice_workers
from backends.discovery.registration import KvEvents, Registration
from tests.backends.discovery.kubernetes.conftest import endpoint, endpoint_slice, following, pod
from tests.support.waiting import eventually

FIELDS = {
    "warmroute.io/model": "llama",
    "warmroute.io/role": "prefill",
    "warmroute.io/weight": "2",
    "warmroute.io/kv-events-port": "5557",
    "warmroute.io/kv-replay-port": "5657",
    "warmroute.io/label.zone": "a",
    "example.com/other": "x",
}


def one(found):
    (worker,) = found
    return worker


def test_annotations_of_a_pod_are_fields_of_its_worker():
    assert one(pod_workers(pod("a", "10.0.0.1", annotations=FIELDS), None)) == Registration(
        url="http://10.0.0.1:8000",
        name="a",
        model="llama",
        role="prefill",
        weight=2,
        labels={"zone": "a"},
        kv_events=KvEvents(endpoint="tcp://10.0.0.1:5557", replay_endpoint="tcp://10.0.0.1:5657"),
    )


def test_labels_serve_as_annotations_do_and_annotations_come_first():
    item = pod("a", "10.0.0.1", labels={"warmroute.io/role": "decode"})
    assert one(pod_workers(item, None)).role == "decode"
    item["metadata"]["annotations"]["warmroute.io/role"] = "prefill"
    assert one(pod_workers(item, None)).role == "prefill"


def test_llmds_role_counts_without_an_own_one():
    item = pod("a", "10.0.0.1", labels={"llm-d.ai/role": "both"})
    assert one(pod_workers(item, None)) == Registration(url="http://10.0.0.1:8000", name="a", role="mixed")
    assert one(pool_workers(item, [8001])).role == "mixed"
    item["metadata"]["annotations"]["warmroute.io/role"] = "decode"
    assert one(pod_workers(item, None)).role == "decode"


@pytest.mark.parametrize(
    ("ports", "wanted", "annotations", "port"),
    [
        ([], None, {}, 8000),
        ([("metrics", 9000), ("other", 1)], None, {}, 9000),
        ([("metrics", 9000), ("http", 8080)], None, {}, 8080),
        ([("metrics", 9000), ("api", 8081)], "api", {}, 8081),
        ([("metrics", 9000)], "8082", {}, 8082),
        ([("http", 8080)], None, {"warmroute.io/port": "8083"}, 8083),
    ],
)
def test_the_port_of_a_pod(ports, wanted, annotations, port):
    assert one(pod_workers(pod("a", "10.0.0.1", ports=ports, annotations=annotations), wanted)).url.endswith(f":{port}")


@pytest.mark.parametrize("how", [{"ready": False}, {"going": True}])
def test_a_pod_that_is_not_ready_or_about_to_end_is_no_worker(how):
    assert list(pod_workers(pod("a", "10.0.0.1", **how), None)) == []


@pytest.mark.parametrize(
    ("item", "wanted", "said"),
    [
        (pod("a", "10.0.0.1"), "api", "pod a: no container has a port 'api'"),
        (pod("a", "10.0.0.1", annotations={"warmroute.io/weight": "x"}), None, "pod a: weight is 'x'"),
        (pod("a", "10.0.0.1", labels={"llm-d.ai/role": "encode"}), None, "pod a: the label llm-d.ai/role is 'encode'"),
        (pod("a", "10.0.0.1", annotations={"warmroute.io/port": "0"}), None, "pod a: the port is 0"),
        (pod("a", "10.0.0.1", annotations={"warmroute.io/scheme": "ftp"}), None, "pod a: 'ftp://10.0.0.1:8000'"),
    ],
)
def test_a_pod_with_a_mistake_is_named(item, wanted, said):
    assert one(pod_workers(item, wanted)).startswith(said)


@pytest.mark.parametrize("item", [{}, {"metadata": 7, "status": []}, {"status": {"conditions": [7], "podIP": 7}}])
def test_an_object_of_another_shape_is_no_worker(item):
    assert list(pod_workers(item, None)) == []
    assert list(pool_workers(item, [8000])) == []
    assert [worker for worker in slice_workers(item, None) if not isinstance(worker, str)] == []


def test_ready_endpoints_of_a_slice_are_workers():
    item = endpoint_slice(
        "s",
        endpoint("10.0.0.1", "pod-1"),
        endpoint("10.0.0.2", ready=False),
        endpoint("10.0.0.3", terminating=True),
        endpoint("10.0.0.4", ready=None),
        endpoint("fd00::5"),
        annotations={"warmroute.io/role": "decode"},
    )
    found = list(slice_workers(item, None))
    assert [worker.url for worker in found] == ["http://10.0.0.1:8000", "http://10.0.0.4:8000", "http://[fd00::5]:8000"]
    assert (found[0].name, {worker.role for worker in found}) == ("pod-1", {"decode"})


@pytest.mark.parametrize(
    ("ports", "wanted", "port"),
    [
        ((("api", 1),), None, 1),
        ((("http", 1), ("m", 2)), None, 1),
        ((("a", 1), ("m", 2)), "m", 2),
        ((("a", 1), ("m", 2)), "2", 2),
    ],
)
def test_the_port_of_a_slice(ports, wanted, port):
    item = endpoint_slice("s", endpoint("10.0.0.1"), ports=ports)
    assert one(slice_workers(item, wanted)).url == f"http://10.0.0.1:{port}"


def test_a_slice_without_the_port_is_named():
    item = endpoint_slice("s", endpoint("10.0.0.1"), ports=(("a", 1), ("m", 2)))
    assert one(slice_workers(item, None)) == "endpointslice s: no port 'http' among a, m"


def test_a_pod_of_a_pool_is_a_worker_at_each_port_that_it_serves():
    item = pod("a", "10.0.0.1")
    assert [worker.name for worker in pool_workers(item, [8000, 8001])] == ["a-8000", "a-8001"]
    item["metadata"]["annotations"]["inference.networking.k8s.io/active-ports"] = "8001, 9"
    assert [(worker.url, worker.name) for worker in pool_workers(item, [8000, 8001])] == [("http://10.0.0.1:8001", "a")]
    item["metadata"]["annotations"]["inference.networking.k8s.io/active-ports"] = "x"
    assert one(pool_workers(item, [8000])).startswith("pod a: inference.networking.k8s.io/active-ports is 'x'")


@pytest.mark.parametrize(
    "spec",
    [
        {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]},
        {"selector": {"app": "vllm"}, "targetPortNumber": 8000},
    ],
)
def test_a_pool_names_labels_and_ports(spec):
    assert pool_of({"metadata": {"name": "p"}, "spec": spec}) == ({"app": "vllm"}, (8000,))


async def test_a_service_is_followed_over_its_slices(api):
    api.objects["endpointslices"] = {}
    api.put("endpointslices", endpoint_slice("s1", endpoint("10.0.0.1")))
    api.put("endpointslices", endpoint_slice("s2", endpoint("10.0.0.2"), endpoint("10.0.0.3")))
    async with following(api, service="vllm") as report:
        await eventually(lambda: len(report.workers) == 3 and api.watches == 1)
        api.put("endpointslices", endpoint_slice("s2", endpoint("10.0.0.2"), endpoint("10.0.0.3", terminating=True)))
        await eventually(lambda: report.workers.keys() == {"10.0.0.1:8000", "10.0.0.2:8000"})


async def test_a_pool_is_followed_with_its_pods(api):
    api.objects["inferencepools"] = {}
    pool = {"metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {"app": "vllm"}}}}
    async with following(api, pool="p") as report:
        await eventually(lambda: report.failing_since is not None)
        assert report.error == "there is no inferencepool p in namespace default"
        api.put("pods", pod("a", "10.0.0.1"))
        api.put("inferencepools", {**pool, "spec": {**pool["spec"], "targetPorts": [{"number": 8000}]}})
        await eventually(lambda: report.workers.keys() == {"10.0.0.1:8000"})
        assert report.failing_since is None
        api.put("pods", pod("b", "10.0.0.2"))
        await eventually(lambda: len(report.workers) == 2)
        api.put("inferencepools", {**pool, "spec": {**pool["spec"], "targetPorts": [{"number": 8001}]}})
        await eventually(lambda: report.workers.keys() == {"10.0.0.1:8001", "10.0.0.2:8001"})
        api.put("pods", pod("a", "10.0.0.1", going=True))
        await eventually(lambda: report.workers.keys() == {"10.0.0.2:8001"})
