"""A profile from requests to vLLM, whose forward pass takes the time of a planted one."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from backends.engine.profile import load_profile
from loadtest.calibrate import command
from loadtest.calibrate.kernels.compose import CPU_GRID
from tests.loadtest.calibrate.test_on_worker import parsed
from tests.support.held_out_steps import held_out_errors

ROOT = Path(__file__).parents[2]
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


RUN = """
import argparse, sys
from loadtest.calibrate import command
commands = argparse.ArgumentParser().add_subparsers()
command.register(commands)
sys.exit(command.run(commands.choices["calibrate"].parse_args(sys.argv[1:])))
"""
TINY = {
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512,
    "intermediate_size": 1536, "vocab_size": 8000,
}  # fmt: skip
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
LATENT = {
    **EXPERTS, "kv_lora_rank": 128, "q_lora_rank": None, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("more", [{}, EXPERTS, LATENT], ids=["dense", "experts", "experts and latent"])
def test_kernels_are_timed_with_torch_on_a_cpu(executable, tmp_path, more):
    """vLLM's environment has torch. A core's own time for the thread does not depend on what else runs."""
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **more}))
    out = tmp_path / "found.toml"
    flags = ["--kv-tokens", "200000", "--max-num-batched-tokens", "2048", "--max-num-seqs", "64"]
    run = [str(executable.with_name("python")), "-c", RUN, str(tmp_path), *flags, "--out", str(out)]
    done = subprocess.run(run, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = len(CPU_GRID.prompts) + len(CPU_GRID.batches) * len(CPU_GRID.contexts)
    assert done.stderr.count("%\n") >= steps, done.stderr
    found = load_profile(str(out))
    assert found.prefill.b_us > 0.0 and found.decode.k_ns > 0.0
    assert bool(found.decode.by_batch) == ("num_experts" in more)
    assert found.fingerprint.torch and found.fingerprint.gpu == "CPU core"
