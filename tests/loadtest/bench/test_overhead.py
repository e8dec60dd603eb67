"""The measures of what a proxy adds, taken without a proxy."""

import os

import pytest

from loadtest.bench.measures import limits, memory
from loadtest.bench.measures.sample import Setting
from loadtest.bench.proxies.entrant import Proxy, standins

SETTING = Setting(window_s=0.2, connections=4)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    with standins(1, tmp_path_factory.mktemp("standin"), kv_events=True) as place:
        (url,) = place.worker_urls
        yield Proxy("direct", url, os.getpid(), url)


async def test_the_time_added_at_one_connection_counts(subject):
    samples = await limits.one_connection(subject, SETTING)
    assert samples[limits.P50].counts and samples[limits.P99].counts


async def test_a_rate_beyond_the_bound_does_not_count(subject, monkeypatch):
    monkeypatch.setattr(limits, "STEPS", (0.1, 0.2))
    monkeypatch.setattr(limits, "TAIL_S", 60.0)
    held = (await limits.bounded_rate(subject, SETTING))[limits.RATE]
    assert held.counts and held.value > 0.0
    monkeypatch.setattr(limits, "TAIL_S", 0.0)
    assert (await limits.bounded_rate(subject, SETTING))[limits.RATE].value == 0.0


@pytest.mark.parametrize(("stall_s", "streams"), [(60.0, 32.0), (0.0, 0.0)])
async def test_streams_count_until_the_first_stall(subject, monkeypatch, stall_s, streams):
    monkeypatch.setattr(limits, "STALL_S", stall_s)
    monkeypatch.setattr(limits, "MOST", 32)
    assert (await limits.stalls(subject, SETTING))[limits.STREAMS].value == streams


async def test_without_a_proxy_there_is_no_memory_to_measure(subject):
    assert {sample.skipped for sample in (await memory.footprint(subject, SETTING)).values()} == {"no proxy"}
