from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from backends.worker import ConnectorFacts, RankCache, ServedModel, WorkerFacts
from router.cli.checks import examine_handover as module
from router.cli.checks.examine import WorkerReport, examine_all
from router.cli.checks.examine_handover import examine_handover
from router.config.model import Config, HandoverConfig, WorkerConfig

FACTS = WorkerFacts(version="0.33.0", models=(ServedModel("m", "/m"),), caches={0: RankCache(16, 100, True)})
PULL = HandoverConfig(connector="nixl_pull")


def configured(*roles, handover=PULL):
    workers = tuple(WorkerConfig(url=f"http://h{n}:8000", role=role) for n, role in enumerate(roles))
    return Config(workers=workers, handover=handover)


def reports(config, *facts):
    return [
        WorkerReport(worker.url[7:], worker.url, found) for worker, found in zip(config.workers, facts, strict=True)
    ]


async def found(config, *facts):
    return await examine_handover(config, reports(config, *facts), requests=False)


async def test_without_a_connector_nothing_is_examined():
    config = configured("prefill", handover=HandoverConfig())
    assert await found(config, FACTS) == []


async def test_a_pair_of_like_workers_is_sound():
    assert await found(configured("prefill", "decode", "mixed"), FACTS, FACTS, replace(FACTS, version="0.1")) == []


@pytest.mark.parametrize(("roles", "missing"), [(("prefill",), "decode"), (("decode",), "prefill")])
async def test_a_role_that_no_worker_has_is_named(roles, missing):
    (warning,) = await found(configured(*roles), FACTS)
    assert f"has the role {missing}" in warning


async def test_a_worker_that_cannot_be_reached_has_no_role():
    (warning,) = await found(configured("prefill", "decode"), FACTS, None)
    assert "has the role decode" in warning


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (replace(FACTS, version="0.32.0"), "vLLM is 0.33.0 there and 0.32.0 here"),
        (replace(FACTS, models=(ServedModel("m", "/n"),)), "the path of m is /m there and /n here"),
        (replace(FACTS, caches={0: RankCache(32, 100, True)}), "the block size is 16 there and 32 here"),
    ],
)
async def test_what_keeps_two_workers_from_being_a_pair_is_named(other, what):
    (warning,) = await found(configured("prefill", "decode"), FACTS, other)
    assert warning == f"h0:8000 and h1:8000 are no pair: {what}"


async def test_workers_of_different_models_need_not_be_alike():
    other = replace(FACTS, version="0.32.0", models=(ServedModel("n", "/n"),))
    assert await found(configured("prefill", "decode"), FACTS, other) == []


@pytest.fixture
async def tried():
    """`await tried(**settings of the prefill worker)` examines it with a prompt, beside a decode worker."""
    async with AsyncExitStack() as stack:

        async def examine(decode_url=None, handover=None, decode=None, connector="nixl_pull", port=None, **settings):
            urls, handover = [], handover or HandoverConfig(connector=connector)
            for given in (settings, decode or {"kv_connector": connector}):
                running = await stack.enter_async_context(serving(WorkerSettings(time_scale=0.0, **given)))
                urls.append(running.url)
            labels = {"mooncake_bootstrap_port": port or urls[0].rpartition(":")[2]}
            prefill = WorkerConfig(url=urls[0], role="prefill", labels=labels)
            workers = (prefill, WorkerConfig(url=urls[1], role="decode"))
            config = Config(workers=workers, handover=handover)
            seen = await examine_all(config, requests=False)
            if decode_url is not None:
                config = Config(workers=(prefill, WorkerConfig(url=decode_url, role="decode")), handover=handover)
            return await examine_handover(config, seen, requests=True)

        yield examine


@pytest.mark.parametrize("connector", ["nixl_pull", "nixl_push", "mooncake"])
async def test_a_worker_with_a_connector_hands_over(tried, connector):
    assert await tried(connector=connector, kv_connector=connector) == []


@pytest.mark.parametrize(("connector", "name"), [("nixl_pull", "NixlConnector"), ("nixl_push", "NixlPushConnector")])
async def test_a_worker_without_a_connector_needs_the_flag(tried, connector, name):
    (warning,) = await tried(connector=connector)
    assert "no kv_transfer_params; start vLLM with --kv-transfer-config" in warning
    assert name in warning


@pytest.mark.parametrize(("port", "problem"), [(None, "/query answered 404"), ("x", "is no port from 1 to 65535")])
async def test_a_worker_without_a_bootstrap_server_needs_the_flag(tried, port, problem):
    (warning,) = await tried(connector="mooncake", port=port)
    assert problem in warning
    assert '"MooncakeConnector","kv_role":"kv_producer"' in warning
    assert "in the label mooncake_bootstrap_port" in warning


@pytest.mark.parametrize("connector", ["nixl_pull", "nixl_push"])
async def test_a_side_channel_on_loopback_is_named_for_a_worker_on_another_machine(tried, connector):
    (warning,) = await tried(decode_url="http://gpu2:8000", connector=connector, kv_connector=connector)
    assert "names 127.0.0.1 as its side channel" in warning
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in warning


async def test_workers_with_one_store_find_each_others_prompts(tried, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STORING_S", 0.0)
    stores = [{"kv_connector": "lmcache", "kv_store_dir": tmp_path / name} for name in "aab"]
    found = HandoverConfig(connector="lmcache")
    assert await tried(handover=found, decode=stores[1], **stores[0]) == []
    (warning,) = await tried(handover=found, decode=stores[2], **stores[0])
    assert "found nothing of a prompt" in warning
    assert "LMCacheMPConnector" in warning
    (warning,) = await tried(handover=found, decode=stores[1] | {"prompt_tokens_details": False}, **stores[0])
    assert "--enable-prompt-tokens-details" in warning


async def test_a_decode_worker_that_does_not_reach_its_peer_is_named(tried, monkeypatch):
    """An embedded worker pulls prefixes from peers alone, and hands no prompt over."""
    monkeypatch.setattr(module, "_STORING_S", 0.0)
    worker = {"kv_connector": "offloading_peer"}
    (warning,) = await tried(handover=HandoverConfig(connector="offloading_peer"), decode=worker, **worker)
    assert "found nothing of a prompt" in warning
    assert '"secondary_tiers":[{"type":"p2p"}]}}\' and side channels that they reach' in warning


async def test_the_flag_of_a_connector_has_its_mode(tried):
    (warning,) = await tried(handover=HandoverConfig(connector="moriio_pull"))
    assert '"kv_connector_extra_config":{"read_mode":true}' in warning


@pytest.mark.parametrize(
    ("known", "what"),
    [
        ({"name": None}, "has the connector none; start vLLM with"),
        ({"name": "MooncakeConnector"}, "has the connector MooncakeConnector"),
        ({"load_failure_policy": "recompute"}, "only vLLM's metrics show it"),
        ({"bidirectional": True}, "has bidirectional_kv_xfer: the blocks of each handed-over answer stay"),
        ({"lease_s": 6.0}, "keeps blocks for 6 s, less than handover.lease_s; set handover.lease_s to 6"),
        ({"side_host": "localhost"}, "has its side channel on localhost; set VLLM_NIXL_SIDE_CHANNEL_HOST"),
    ],
)
async def test_what_is_wrong_with_a_workers_connector_is_named(known, what):
    sound = {"name": "NixlConnector", "load_failure_policy": "fail", "side_host": "h0"}
    connector = ConnectorFacts(**sound | known)
    (warning,) = await found(configured("prefill", "decode"), replace(FACTS, connector=connector), FACTS)
    assert what in warning


async def test_what_both_workers_report_must_be_equal():
    half, full = (
        replace(FACTS, connector=ConnectorFacts(name="NixlConnector", dtype=one)) for one in ("half", "float")
    )
    (warning,) = await found(configured("prefill", "decode"), half, full)
    assert "the type of the model is half there and float here" in warning
    assert await found(configured("prefill", "decode"), half, FACTS) == []


async def test_a_worker_in_development_mode_describes_its_connector(tried):
    decode = {"kv_connector": "nixl_pull", "dev_mode": True, "kv_lease_s": 2.0}
    (warning,) = await tried(kv_connector="nixl_pull", decode=decode)
    assert "keeps blocks for 2 s" in warning
