import pytest

from router.config.problems import ConfigError
from router.settings import load


def problems(tmp_path, text):
    file = tmp_path / "g.yaml"
    file.write_text(f"discovery:\n  sources:\n{text}")
    with pytest.raises(ConfigError) as raised:
        load({}, {}, file)
    return [str(one).replace(str(file), "g.yaml") for one in raised.value.problems]


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("    Lab: {file: /x}\n", "g.yaml:3:5", "cannot name a source"),
        ("    api: {file: /x}\n", "g.yaml:3:5", "the name api is taken"),
        ("    lab: {}\n", "g.yaml:3:5", "the source has no kind"),
        ("    lab: {file: {}}\n", "g.yaml:3:11", "write text"),
        ("    lab: {file: /x, defaults: {rolle: x}}\n", "g.yaml:3:32", "did you mean role?"),
        ("    lab: {file: /x, defaults: {name: x}}\n", "g.yaml:3:32", "each worker has its own"),
        ("    lab: {file: /x, defaults: {weight: heavy}}\n", "g.yaml:3:21", "weight is 'heavy'"),
        ("    lab: {file: /x, defaults: {label.lane: fast}}\n", "g.yaml:3:21", "'fast' is no lane"),
        ("    lab: {file: /x, api_key: '***'}\n", "g.yaml:3:21", "stands for a key"),
        ("    lab: {file: /x, dns: y}\n", "g.yaml:3:21", "the source has the kinds file and dns"),
        ("    lab: {dns: {name: y, nameservers: [ns1]}}\n", "g.yaml:3:40", "'ns1' is no address"),
        ("    lab: {dns: {name: y, port: 0}}\n", "g.yaml:3:26", "port"),
        ("    lab: {kubernetes: {namespace: x}}\n", "g.yaml:3:11", "names no workers"),
        ("    lab: {kubernetes: {pods: a=b, pool: p}}\n", "g.yaml:3:11", "names pods and pool"),
        ("    lab: {kubernetes: {service: A_b}}\n", "g.yaml:3:24", "no name of Kubernetes"),
        ("    lab: {kubernetes: {pool: p, port: 80}}\n", "g.yaml:3:33", "the pool names the ports itself"),
        ("    lab: {kubernetes: {pool: p, api_url: k8s}}\n", "g.yaml:3:33", "'k8s' is no URL"),
        ("    lab: {redis: {}}\n", "g.yaml:3:11", "redis.url is not set"),
        ("    lab: {files: /x}\n", "g.yaml:3:11", "did you mean discovery.sources.lab.file?"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, text, place, said):
    found = problems(tmp_path, text)
    assert any(one.startswith(place) and said in one for one in found), found


def test_a_network_that_is_none_is_named(tmp_path):
    file = tmp_path / "g.yaml"
    file.write_text("discovery: {registration_networks: [10.0.0.0/8, 10.0.0.1/8, rack]}\n")
    with pytest.raises(ConfigError) as raised:
        load({}, {}, file)
    assert [one.problem for one in raised.value.problems] == [
        "10.0.0.1/8 has host bits set",
        "'rack' does not appear to be an IPv4 or IPv6 network",
    ]


@pytest.mark.parametrize("port", ["8000", "http"])
def test_a_port_is_a_number_or_a_name(tmp_path, port):
    file = tmp_path / "g.yaml"
    file.write_text(f"discovery: {{sources: {{lab: {{kubernetes: {{pods: app=vllm, port: {port}}}}}}}}}")
    assert str(load({}, {}, file).discovery.sources["lab"].kubernetes.port) == port
