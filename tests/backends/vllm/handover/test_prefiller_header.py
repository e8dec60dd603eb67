import pytest

from backends.vllm.handover.prefiller_header import header_line, named_worker
from backends.worker import parse_endpoint

WORKERS = {"gpu1:8000", "[fd00::1]:8000"}


def test_the_header_names_host_and_port():
    assert header_line(parse_endpoint("http://gpu1:8000")) == b"x-prefiller-host-port: gpu1:8000"


@pytest.mark.parametrize("value", [b"gpu1:8000", b" GPU1:8000\t", b"[fd00::1]:8000"])
def test_a_known_worker_is_found(value):
    assert named_worker(value, WORKERS) in WORKERS


@pytest.mark.parametrize("value", [b"", b"gpu2:8000", b"gpu1:8001", b"gpu1:8000,gpu2:8000", b"gpu1:8000" * 50, b"\xff"])
def test_any_other_address_is_not_obeyed(value):
    assert named_worker(value, WORKERS) is None
