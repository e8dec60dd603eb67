import dns.rdatatype
import pytest

from backends.discovery.dns import DnsSource
from backends.discovery.fields import parse_server
from backends.discovery.registration import Registration
from tests.backends.discovery.conftest import followed
from tests.support.dnsmasq import Dnsmasq
from tests.support.waiting import eventually


@pytest.fixture
def zone(tmp_path):
    zone = Dnsmasq(tmp_path)
    zone.has(one=["10.0.0.1"], two=["10.0.0.2"], spare=["10.0.0.9"], vllm=["10.0.0.1", "10.0.0.2", "fd00::3"])
    zone.start()
    yield zone
    zone.stop()


async def test_the_addresses_of_a_name_are_workers_at_one_port(zone):
    async with followed(DnsSource("vllm.test", 8000, "https", [zone.server])) as report:
        await eventually(lambda: report.answered)
        assert {name: one.url for name, one in report.workers.items()} == {
            "10.0.0.1:8000": "https://10.0.0.1:8000",
            "10.0.0.2:8000": "https://10.0.0.2:8000",
            "[fd00::3]:8000": "https://[fd00::3]:8000",
        }


async def test_srv_records_name_the_ports_and_the_lowest_priority_counts(zone):
    async with followed(DnsSource("_vllm._tcp.test", None, "http", [zone.server])) as report:
        await eventually(lambda: report.answered)
        assert report.workers.keys() == {"10.0.0.1:8001", "10.0.0.2:8002"}


async def test_a_change_is_seen_when_the_time_to_live_is_over(zone):
    async with followed(DnsSource("vllm.test", 8000, "http", [zone.server])) as report:
        await eventually(lambda: len(report.workers) == 3)
        zone.has(vllm=["10.0.0.2", "10.0.0.4"])
        await eventually(lambda: report.workers.keys() == {"10.0.0.2:8000", "10.0.0.4:8000"}, 3.0)


async def test_records_are_not_asked_for_before_their_time(tmp_path):
    zone = Dnsmasq(tmp_path, ttl_s=60)
    zone.has(one=["10.0.0.1"])
    zone.start()
    source = DnsSource("one.test", 8000, "http", [zone.server])
    assert await source._ask() == ({"10.0.0.1:8000": Registration(url="http://10.0.0.1:8000")}, 60.0)
    zone.stop()


async def test_a_server_that_refuses_the_other_kind_of_address_still_names_workers(tmp_path):
    zone = Dnsmasq(tmp_path, local="")
    zone.has(one=["10.0.0.1"])
    zone.start()
    async with followed(DnsSource("one.test", 8000, "http", [zone.server])) as report:
        await eventually(lambda: report.workers.keys() == {"10.0.0.1:8000"})
        assert report.failures == 0
    refused = DnsSource("one.test", 8000, "http", [zone.server])
    refused._kinds.add(dns.rdatatype.AAAA)  # it had IPv6 addresses
    async with followed(refused) as report:
        await eventually(lambda: report.failing_since is not None)
    zone.stop()


async def test_a_name_that_does_not_exist_is_a_failure(zone):
    async with followed(DnsSource("vlm.test", 8000, "http", [zone.server])) as report:
        await eventually(lambda: report.failing_since is not None)
        assert "vlm.test" in report.error and "does not exist" in report.error
        assert not report.answered


async def test_a_server_that_is_gone_leaves_the_last_answer(zone, monkeypatch):
    monkeypatch.setattr("backends.discovery.dns.LIFETIME_S", 0.3)
    async with followed(DnsSource("vllm.test", 8000, "http", [zone.server])) as report:
        await eventually(lambda: len(report.workers) == 3)
        zone.stop()
        await eventually(lambda: report.failing_since is not None)
        assert len(report.workers) == 3
        zone.start()
        await eventually(lambda: report.failing_since is None)


async def test_a_name_without_records_of_the_kind_is_an_empty_answer(zone):
    async with followed(DnsSource("one.test", None, "http", [zone.server])) as report:
        await eventually(lambda: report.answered)
        assert report.workers == {}


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("10.0.0.2", ("10.0.0.2", 53)),
        ("10.0.0.2:5353", ("10.0.0.2", 5353)),
        ("fd00::2", ("fd00::2", 53)),
        ("[fd00::2]", ("fd00::2", 53)),
        ("[fd00::2]:5353", ("fd00::2", 5353)),
    ],
)
def test_a_server_is_an_address_with_or_without_a_port(text, server):
    assert parse_server(text) == server


@pytest.mark.parametrize("text", ["", "ns1", "10.0.0.2:0", "10.0.0.2:x", "[fd00::2", "https://10.0.0.2/dns-query"])
def test_another_text_is_no_server(text):
    with pytest.raises(ValueError, match="write"):
        parse_server(text)
