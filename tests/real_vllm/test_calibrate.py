"""A profile from requests to vLLM, whose forward pass takes the time of a planted one."""

import asyncio

import pytest

from backends.engine.profile import load_profile
from loadtest.calibrate import command
from tests.loadtest.calibrate.test_on_worker import parsed
from tests.support.held_out_steps import held_out_errors

PLANTED = load_profile("llama-3.1-70b-4xh100")
TIME_SCALE = 2.0
"""The time of vLLM's own code between steps, some ms on a busy machine, is in the measured steps too."""


@pytest.mark.nightly
async def test_a_planted_profile_is_found(vllm, tmp_path, capsys):
    server = vllm("--max-num-batched-tokens", "8192", profile=PLANTED.name, time_scale=TIME_SCALE, dev_mode=True)
    out = tmp_path / "found.toml"
    assert await asyncio.to_thread(command.run, parsed(server.url, "--out", str(out))) == 0, capsys.readouterr().err
    found = load_profile(str(out))
    errors = held_out_errors(found, PLANTED, TIME_SCALE)
    assert errors["prefill"] < 0.05 and errors["decode"] < 0.05 and errors["mixed"] < 0.10, errors
    assert found.max_num_batched_tokens == 8_192 and found.kv_tokens == pytest.approx(PLANTED.kv_tokens, rel=0.01)
    assert (found.fingerprint.dtype, found.fingerprint.tensor_parallel) == ("bfloat16", 1)
    assert "gpu" in found.fingerprint.unknown()
