import json

import pytest

from backends.engine.profile import Fingerprint
from backends.vllm.deployment import gpu_names, parse_deployment

INFO = {
    "vllm_config": {
        "model_config": {
            "model": "meta-llama/Llama-3.1-8B", "revision": "abc", "dtype": "torch.bfloat16", "quantization": None,
        },
        "cache_config": {"block_size": 16, "cache_dtype": "auto"},
        "parallel_config": {
            "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1,
            "enable_expert_parallel": False,
        },
        "scheduler_config": {"max_num_batched_tokens": 8192, "max_num_seqs": 256},
    },
    "system_env": {
        "nvidia_gpu_models": "GPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100 80GB HBM3",
        "nvidia_driver_version": "580.1",
        "torch_version": "2.13.0",
    },
}  # fmt: skip


def test_what_vllm_says():
    assert parse_deployment(json.dumps(INFO).encode()) == Fingerprint(
        gpu="NVIDIA H100 80GB HBM3",
        driver="580.1",
        torch="2.13.0",
        model="meta-llama/Llama-3.1-8B",
        model_revision="abc",
        dtype="bfloat16",
        quantization="none",
        kv_cache_dtype="auto",
        tensor_parallel=2,
        pipeline_parallel=1,
        data_parallel=1,
        expert_parallel=False,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        block_size=16,
    )


@pytest.mark.parametrize("body", [b"{}", b"[]", b"nothing", b'{"vllm_config": "text"}', b"\xff"])
def test_another_document_says_nothing(body):
    assert parse_deployment(body) == Fingerprint()


def test_different_gpus_are_all_named():
    assert gpu_names("GPU 0: B\nGPU 1: A\nGPU 2: A (UUID: x)") == "A, A (UUID: x), B"
    assert gpu_names(None) is None and gpu_names("\n") is None
