"""Each router's command line as its documentation wants it, and what happens to one that is not there."""

import sys
from pathlib import Path

import pytest

from loadtest.compare.contenders import Site, UnknownContender, Worker, parse_contender

WORKERS = (
    Worker("http://127.0.0.1:9001", 1, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"),
    Worker("http://127.0.0.1:9002", 2, "tcp://127.0.0.1:5567", None),
)
SITE = Site(8000, 8001, WORKERS, "some-model", Path("/peers"))


def after(command, flag):
    return [command[place + 1] for place, word in enumerate(command[:-1]) if word == flag]


def test_warmroute_gets_its_own_defaults_and_the_policy():
    command = parse_contender("warmroute:lpwl").command(SITE)
    assert command[:5] == [sys.executable, "-P", "-m", "warmroute", "serve"]
    assert after(command, "--worker") == ["http://127.0.0.1:9001", "http://127.0.0.1:9002"]
    assert after(command, "--policy") == ["lpwl"]
    assert (after(command, "--port"), after(command, "--admin-port")) == (["8000"], ["8001"])


def test_sglang_router_takes_its_subcommand_and_all_workers_behind_one_flag():
    command = parse_contender("sglang-router:cache_aware").command(SITE)
    assert command[:5] == ["/peers/bin/sglang-router", "launch", "--worker-urls", *SITE.worker_urls]
    assert (after(command, "--policy"), after(command, "--host")) == (["cache_aware"], ["127.0.0.1"])
    assert (after(command, "--prometheus-host"), after(command, "--prometheus-port")) == (["127.0.0.1"], ["8001"])


def test_vllm_router_hears_of_event_sources_for_kv_aware_only():
    plain = parse_contender("vllm-router:cache_aware").command(SITE)
    assert plain[:2] == ["/peers/bin/vllm-router", "--worker-urls"]
    assert not [word for word in plain if word.startswith("--kv-event")]
    exact = parse_contender("vllm-router:kv_aware").command(SITE)
    assert after(exact, "--kv-event-source") == [
        "http://127.0.0.1:9001=tcp://127.0.0.1:5557",
        "http://127.0.0.1:9002=tcp://127.0.0.1:5567",
    ]
    assert after(exact, "--kv-event-replay-source") == ["http://127.0.0.1:9001=tcp://127.0.0.1:5558"]
    assert (after(exact, "--kv-event-block-size"), after(exact, "--kv-event-model")) == (["16"], ["some-model"])


def test_further_flags_come_last_so_that_they_win():
    contender = parse_contender("sglang-router:cache_aware --balance-abs-threshold 4")
    assert contender.command(SITE)[-2:] == ["--balance-abs-threshold", "4"]
    assert contender.name == "sglang-router:cache_aware --balance-abs-threshold 4"


@pytest.mark.parametrize("text", ["", "nginx:round_robin", "sglang-router", "warmroute:"])
def test_an_unknown_router_is_refused_with_those_there_are(text):
    with pytest.raises(UnknownContender, match="warmroute, sglang-router, vllm-router"):
        parse_contender(text)


def test_a_router_that_is_not_installed_has_no_version(tmp_path):
    assert parse_contender("sglang-router:cache_aware").version(tmp_path) is None
    assert parse_contender("warmroute:round_robin").version(tmp_path)


def test_a_router_that_does_not_answer_knows_no_workers():
    for name in ("warmroute:lpwl", "sglang-router:cache_aware", "vllm-router:kv_aware", "smg:round_robin"):
        assert parse_contender(name).registered(Site(1, 1, WORKERS, "some-model", Path("/peers"))) == 0
