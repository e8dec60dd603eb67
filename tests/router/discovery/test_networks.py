import pytest

from backends.discovery.registration import KvEvents, Registration
from router.config.model import DiscoverySourceConfig
from router.discovery.networks import AddressNotAllowedError, check_addresses, networks_of
from router.discovery.workers import FoundSettings

NETWORKS = networks_of(("10.0.0.0/8", "fd00::/8", "192.0.2.7"))


@pytest.mark.parametrize(
    "url",
    ["http://10.1.2.3:8000", "http://[fd00::2]:8000", "http://192.0.2.7", "http://[::ffff:10.0.0.1]:8000"],
)
def test_an_address_of_a_network_is_allowed(url):
    check_addresses(Registration(url=url), NETWORKS)


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.8:8000",
        "http://169.254.169.254",
        "http://[2001:db8::1]:8000",
        "http://[::ffff:192.0.2.8]:8000",
        "http://worker.example:8000",
        "http://0x0a.1:8000",
    ],
)
def test_another_address_and_a_name_are_refused(url):
    with pytest.raises(AddressNotAllowedError, match="registration_networks"):
        check_addresses(Registration(url=url), NETWORKS)


@pytest.mark.parametrize("endpoint", ["tcp://192.0.2.8:5557", "tcp://eth0;10.0.0.1:5557", "ipc:///run/events"])
@pytest.mark.parametrize("field", ["endpoint", "replay_endpoint"])
def test_kv_events_must_come_from_the_networks_too(endpoint, field):
    events = KvEvents(**{"endpoint": "tcp://10.0.0.1:5557", field: endpoint})
    with pytest.raises(AddressNotAllowedError):
        check_addresses(Registration(url="http://10.0.0.1:8000", kv_events=events), NETWORKS)


def test_without_networks_every_address_is_allowed():
    check_addresses(Registration(url="http://worker.example:8000"), ())


def test_registrations_of_a_source_from_elsewhere_are_refused_with_the_reason():
    found = FoundSettings(DiscoverySourceConfig(), NETWORKS)
    workers = {place: Registration(url=f"http://{place}") for place in ("10.0.0.5:8000", "192.0.2.8:8000")}
    assert list(found.of(workers)) == ["10.0.0.5:8000"]
    assert found.refused == ("192.0.2.8:8000: 192.0.2.8 is in no network of discovery.registration_networks",)
