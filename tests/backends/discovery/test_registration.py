import pytest

from backends.discovery.registration import KvEvents, Registration, decode, encode, registration_key

WHOLE = Registration(
    url="http://10.0.0.5:8000",
    name="gpu-5",
    model="llama",
    role="prefill",
    weight=2.0,
    labels={"zone": "a"},
    kv_events=KvEvents(endpoint="tcp://10.0.0.5:5557", replay_endpoint="tcp://10.0.0.5:5657", topic="kv"),
    started_at=1_700_000_000.5,
)


@pytest.mark.parametrize("registration", [WHOLE, Registration(url="http://10.0.0.5:8000")])
def test_a_registration_survives_its_document(registration: Registration) -> None:
    assert decode(encode(registration)) == registration


def test_a_document_has_only_what_was_set() -> None:
    assert encode(Registration(url="http://h:1")) == b'{"url":"http://h:1"}'


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert decode(b'{"url":"http://h:1","power_w":700}') == Registration(url="http://h:1")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "not a registration"),
        (b"\xff", "not a registration"),
        (b"[]", "not a registration"),
        (b"{}", "url"),
        (b'{"url":"http://h:1","weight":0}', "weight"),
        (b'{"url":"http://h:1/v1"}', "address of the API"),
        (b'{"url":"' + 70_000 * b"h" + b'"}', "at most 65536"),
    ],
)
def test_a_document_that_is_no_registration_is_refused(document: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(document)


def test_the_key_has_the_fleet_as_hash_tag() -> None:
    assert registration_key("warmroute", "default", "10.0.0.5:8000") == "warmroute:{default}:worker:10.0.0.5:8000"


def test_the_id_of_a_worker_is_its_address() -> None:
    assert Registration(url="https://[::1]:8443/base").worker_id == "[::1]:8443"
