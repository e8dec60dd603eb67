import msgspec
import pytest

from backends.vllm.control import RefusedError
from backends.vllm.server_info import parse_server_info, read_connector
from backends.worker import ConnectorFacts


def info(transfer, env=None, dtype="torch.float16"):
    config = {"kv_transfer_config": transfer, "model_config": {"dtype": dtype, "max_model_len": 4096}}
    return msgspec.json.encode({"vllm_config": config, "vllm_env": env or {}, "system_env": {}})


def test_a_connector_is_described():
    transfer = {
        "kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": 6, "bidirectional_kv_xfer": True},
        "engine_id": "e", "kv_port": 14579,
    }  # fmt: skip
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "localhost", "VLLM_NIXL_SIDE_CHANNEL_PORT": 5600, "VLLM_X": [1]}
    assert parse_server_info(info(transfer, env)) == ConnectorFacts(
        name="NixlConnector", role="kv_both", load_failure_policy="recompute", lease_s=6.0, bidirectional=True,
        dtype="torch.float16", side_host="localhost", side_port=5600,
    )  # fmt: skip


def test_a_worker_without_a_connector_says_so():
    facts = parse_server_info(info(None))
    assert facts is not None
    assert (facts.name, facts.lease_s, facts.dtype) == (None, None, "torch.float16")


def test_a_lease_in_another_form_is_unknown_and_a_long_text_is_cut():
    facts = parse_server_info(
        info({"kv_connector": "x" * 9_999, "kv_connector_extra_config": {"kv_lease_duration": True}})
    )
    assert facts is not None
    assert (len(facts.name or ""), facts.lease_s) == (256, None)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"vllm_config":"text"}', b"\xff", b"[" * 100_000])
def test_another_document_says_nothing(body):
    assert parse_server_info(body) is None


class Refusing:
    """A client whose worker answers every question with `status`."""

    def __init__(self, status):
        self.status = status

    async def get(self, *question):
        raise RefusedError("no", self.status)


@pytest.mark.parametrize("status", [404, 405])
async def test_a_worker_without_the_path_says_nothing(status):
    assert await read_connector(Refusing(status), None, 1.0) is None


@pytest.mark.parametrize("status", [401, 403, 429, 503])
async def test_any_other_refusal_is_asked_again(status):
    with pytest.raises(RefusedError):
        await read_connector(Refusing(status), None, 1.0)
