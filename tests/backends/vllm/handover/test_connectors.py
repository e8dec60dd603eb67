"""What each connector's requests carry, from exchanges with vLLM 0.32 and 0.33 and from its documentation."""

from dataclasses import replace

import pytest

from backends.vllm.handover.connector import HandoverPeer, Legs, with_token_ids
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.mooncake import bootstrap_of, read_engine_ids
from backends.vllm.handover.nixl import misses_side_channel_host
from backends.vllm.handover.offloading_peer import pull_params
from backends.vllm.handover.parameters import HandoverError
from backends.vllm.handover.prefill_answer import PrefillAnswer

LEGS = Legs(
    transfer_id="t-1",
    prefill=HandoverPeer(host="gpu1", engine_id="e1", side_port=5600),
    decode=HandoverPeer(host="gpu2"),
)
PULLED = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[3, 4]],
    "remote_engine_id": "e1",
    "remote_request_id": "cmpl-1-0-abc",
    "remote_host": "gpu1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_blocks_expiry_time": 12.5,
    "remote_prefill_cached_tokens": 32,
}


def answered(params=None, finish_reason="length"):
    return PrefillAnswer(finish_reason=finish_reason, params=params)


def test_a_moriio_pull_names_the_transfer_and_both_ports():
    pull = CONNECTORS["moriio_pull"]
    assert pull.prefill_params(LEGS)["transfer_id"] == "t-1"
    handed = {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[3]], "remote_engine_id": "e1",
        "remote_host": "127.0.0.1", "remote_handshake_port": 6301, "remote_notify_port": 61005, "tp_size": 1,
        "transfer_id": "t-1",
    }  # fmt: skip
    assert pull.decode_params(LEGS, pull.handed_over(answered(handed))) == handed | {"remote_host": "gpu1"}
    with pytest.raises(HandoverError, match="ended by stop"):
        pull.handed_over(answered(handed, "stop"))
    for name in handed:
        if name != "do_remote_decode":
            with pytest.raises(HandoverError, match=name):
                pull.handed_over(answered({other: value for other, value in handed.items() if other != name}))


# NIXL pull


def test_a_pull_asks_the_prefill_worker_to_keep_its_blocks():
    params = CONNECTORS["nixl_pull"].prefill_params(LEGS)
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (True, False)
    assert [value for name, value in params.items() if name.startswith("remote_")] == [None] * 4


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_pull_passes_on_what_the_prefill_worker_returned(reason):
    pull = CONNECTORS["nixl_pull"]
    handed = pull.handed_over(answered(PULLED, reason))
    assert pull.decode_params(LEGS, handed) == PULLED


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_an_aborted_prefill_hands_nothing_over(reason):
    with pytest.raises(HandoverError, match="ended by"):
        CONNECTORS["nixl_pull"].handed_over(answered(PULLED, reason))


@pytest.mark.parametrize(
    "name", ["remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host", "remote_port", "tp_size"]
)
def test_an_incomplete_set_never_reaches_a_decode_worker(name):
    with pytest.raises(HandoverError, match=f"lacks {name}"):
        CONNECTORS["nixl_pull"].handed_over(answered({key: PULLED[key] for key in PULLED if key != name}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_remote_prefill", None),
        ("do_remote_prefill", 1),
        ("remote_block_ids", []),
        ("remote_block_ids", [[]]),
        ("remote_engine_id", ""),
        ("remote_engine_id", "a" * 2_000),
        ("remote_host", "http://evil"),
        ("remote_port", 70_000),
        ("remote_port", "5600"),
        ("tp_size", 0),
    ],
)
def test_hostile_parameters_are_refused(name, value):
    with pytest.raises(HandoverError, match=name):
        CONNECTORS["nixl_pull"].handed_over(answered(PULLED | {name: value}))


def test_an_answer_without_parameters_hands_nothing_over():
    pull = CONNECTORS["nixl_pull"]
    with pytest.raises(HandoverError, match="no kv_transfer_params"):
        pull.handed_over(answered(None))
    with pytest.raises(HandoverError, match="nothing over"):
        pull.decode_params(LEGS, None)
    with pytest.raises(HandoverError, match="do_remote_decode"):
        pull.handed_over(answered(PULLED | {"do_remote_decode": True}))


def test_a_loopback_side_channel_is_replaced_for_a_worker_on_another_machine():
    pull, local = CONNECTORS["nixl_pull"], PULLED | {"remote_host": "localhost"}
    assert misses_side_channel_host("localhost", LEGS.prefill, LEGS.decode)
    assert pull.decode_params(LEGS, local)["remote_host"] == "gpu1"
    assert local["remote_host"] == "localhost"


@pytest.mark.parametrize(("prefill", "decode"), [("gpu1", "gpu1"), ("127.0.0.1", "localhost")])
def test_a_loopback_side_channel_stays_on_one_machine(prefill, decode):
    legs = replace(LEGS, prefill=HandoverPeer(host=prefill), decode=HandoverPeer(host=decode))
    local = PULLED | {"remote_host": "localhost"}
    assert CONNECTORS["nixl_pull"].decode_params(legs, local)["remote_host"] == "localhost"


# the others


def test_a_push_names_a_complete_peer():
    push = CONNECTORS["nixl_push"]
    assert push.prefill_params(LEGS) == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "t-1"}
    assert push.handed_over(answered()) is None
    assert push.decode_params(LEGS, None) == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "e1",
        "remote_host": "gpu1",
        "remote_port": 5600,
        "remote_request_id": "t-1",
        "tp_size": 1,
        "pp_size": 1,
        "transfer_id": "t-1",
    }


def test_a_pushs_first_answer_introduces_the_prefill_worker():
    push, peer = CONNECTORS["nixl_push"], HandoverPeer(host="gpu1", rank=1)
    known = push.introduced(peer, answered(PULLED | {"remote_host": "localhost", "tp_size": 2, "pp_size": 4}))
    assert (known.engine_id, known.side_port, known.tp_size, known.pp_size, known.rank) == ("e1", 5600, 2, 4, 1)
    params = push.decode_params(replace(LEGS, prefill=known), None)
    assert (params["remote_host"], params["remote_port"], params["tp_size"]) == ("gpu1", 5600, 2)
    assert push.introduced(peer, answered(PULLED | {"pp_size": 0})).pp_size == 1


@pytest.mark.parametrize("wrong", [{"remote_engine_id": 1}, {"remote_host": "a b"}, {"remote_port": 0}, {"tp_size": 0}])
def test_an_introduction_is_checked(wrong):
    with pytest.raises(HandoverError, match=next(iter(wrong))):
        CONNECTORS["nixl_push"].introduced(HandoverPeer(host="gpu1"), answered(PULLED | wrong))


@pytest.mark.parametrize("name", ["nixl_pull", "mooncake"])
def test_other_answers_introduce_nobody(name):
    assert CONNECTORS[name].introduced(HandoverPeer(host="gpu1"), answered(PULLED)) is None


@pytest.mark.parametrize("peer", [HandoverPeer(host="gpu1", side_port=1), HandoverPeer(host="gpu1", engine_id="e1")])
def test_a_push_without_a_fact_about_the_prefill_worker_is_not_sent(peer):
    with pytest.raises(HandoverError, match="prefill worker is not known"):
        CONNECTORS["nixl_push"].decode_params(replace(LEGS, prefill=peer), None)


def test_mooncake_pairs_by_transfer_id_and_bootstrap_server():
    mooncake = CONNECTORS["mooncake"]
    legs = replace(LEGS, prefill=HandoverPeer(host="fd00::1", engine_id="e1"))
    assert mooncake.prefill_params(legs)["transfer_id"] == "t-1"
    params = mooncake.decode_params(legs, None)
    assert params["remote_bootstrap_addr"] == "http://[fd00::1]:8998"
    assert (params["remote_engine_id"], params["transfer_id"]) == ("e1", "t-1")


def test_mooncake_needs_a_prefill_that_ends_by_length():
    assert CONNECTORS["mooncake"].handed_over(answered()) is None
    with pytest.raises(HandoverError, match="ended by stop"):
        CONNECTORS["mooncake"].handed_over(answered(finish_reason="stop"))


def test_the_bootstrap_server_names_an_engine_for_each_rank():
    raw = b'{"0":{"engine_id":"e0","worker_addr":{"0":{"0":"tcp://127.0.0.1:36673"}}},"1":{"engine_id":"e1"}}'
    assert read_engine_ids(raw) == {0: "e0", 1: "e1"}


def test_a_bootstrap_server_has_vllms_port_unless_a_label_names_another():
    assert bootstrap_of("gpu1", None).url == "http://gpu1:8998"
    assert bootstrap_of("fd00::1", "9001").url == "http://[fd00::1]:9001"


def test_a_label_that_is_no_port_is_named():
    with pytest.raises(HandoverError, match="mooncake_bootstrap_port is"):
        bootstrap_of("gpu1", "0")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"0":{}}', b'{"x":{"engine_id":"e"}}', b'{"0":{"engine_id":1}}'])
def test_another_answer_of_a_bootstrap_server_is_refused(raw):
    with pytest.raises(HandoverError, match="names no engines"):
        read_engine_ids(raw)


def test_the_peer_tier_names_the_other_worker():
    peer = CONNECTORS["offloading_peer"]
    legs = replace(LEGS, prefill=HandoverPeer(host="gpu1", side_host="10.0.0.1", rank=2))
    source = {"kv_request_id": "t-1", "remote_host": "10.0.0.1", "remote_port": 5712}
    assert peer.prefill_params(legs) == {"remote_decoder": {"kv_request_id": "t-1"}}
    assert peer.decode_params(legs, None) == {"remote_prefiller": source}
    assert pull_params("t-1", legs.prefill) == {"remote_kv_source": source}


@pytest.mark.parametrize(
    ("label", "side"), [("5711", ("gpu1", 5_712)), ("10.0.0.1:5712", ("10.0.0.1", 5_713)), ("x", (None, None))]
)
def test_the_label_of_a_worker_names_its_side_channel_in_the_peer_tier(label, side):
    named = CONNECTORS["offloading_peer"].peer("gpu1", 1, {"kv_peer": label})
    assert (named.host, named.side_host, named.side_port, named.rank) == ("gpu1", *side, 1)
    assert CONNECTORS["nixl_pull"].peer("gpu1", 1, {"kv_peer": label}) == HandoverPeer(host="gpu1", rank=1)


@pytest.mark.parametrize("name", ["shared_store", "lmcache"])
def test_a_shared_store_needs_no_parameters(name):
    store = CONNECTORS[name]
    assert store.prefill_params(LEGS) is None
    assert store.handed_over(answered(finish_reason="stop")) is None
    assert store.decode_params(LEGS, None) is None


def test_token_ids_are_added_beside_any_parameters():
    assert with_token_ids(None, [1, 2]) == {"prompt_token_ids": [1, 2]}
    assert with_token_ids({"a": 1}, [1]) == {"a": 1, "prompt_token_ids": [1]}
    assert with_token_ids(None, None) is None
    assert with_token_ids({"a": 1}, []) == {"a": 1}
