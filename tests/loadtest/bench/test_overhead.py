"""The measures of what a proxy adds, taken without a proxy."""

import pytest

from loadtest.bench.measures import bounded_rate, footprint, one_connection, stalls
from loadtest.bench.measures.subject import Setting, Subject
from loadtest.bench.proxies.entrant import standin

SETTING = Setting(window_s=0.2, connections=4)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    with standin(tmp_path_factory.mktemp("standin"), kv_events=True) as port:
        url = f"http://127.0.0.1:{port}"
        yield Subject("direct", url, 0, url, 0)


async def test_at_one_connection_as_many_requests_go_to_the_proxy_as_to_the_worker(subject):
    samples = await one_connection.one_connection(subject, SETTING)
    assert samples[one_connection.P50].counts
    assert samples[one_connection.P50].count == samples[one_connection.P99].count > 0


async def test_a_rate_beyond_the_bound_does_not_count(subject, monkeypatch):
    monkeypatch.setattr(bounded_rate, "STEPS", (0.1, 0.2))
    monkeypatch.setattr(bounded_rate, "TAIL_S", 60.0)
    held = (await bounded_rate.bounded_rate(subject, SETTING))[bounded_rate.RATE]
    assert held.counts and held.value > 0.0
    monkeypatch.setattr(bounded_rate, "TAIL_S", 0.0)
    assert (await bounded_rate.bounded_rate(subject, SETTING))[bounded_rate.RATE].value == 0.0


@pytest.mark.parametrize(("stall_s", "streams"), [(60.0, 32.0), (0.0, 0.0)])
async def test_streams_count_until_the_first_stall(subject, monkeypatch, stall_s, streams):
    monkeypatch.setattr(stalls, "STALL_S", stall_s)
    monkeypatch.setattr(stalls, "MOST", 32)
    assert (await stalls.stalls(subject, SETTING))[stalls.STREAMS].value == streams


async def test_without_a_proxy_there_is_no_memory_to_measure(subject):
    assert {sample.skipped for sample in (await footprint.footprint(subject, SETTING)).values()} == {"no proxy"}
