"""Two vLLM servers on the CPU that move real KV cache over NIXL, and the gateway in front of them."""

import json
import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from backends.simulated.settings import shipped_model_dir
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute

ENVIRONMENT = "WARMROUTE_PD_ENV"
START_S = 300.0
VLLM_NAMES = {"nixl_pull": "NixlConnector", "nixl_push": "NixlPushConnector", "shared_store": "ExampleConnector"}
TRANSFER = {
    "kv_role": "kv_both",
    "kv_load_failure_policy": "fail",
}
QUIET = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HOST_IP": "127.0.0.1", "UCX_TLS": "tcp",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if "real_handover" in item.path.parts[-2]:
            item.add_marker(pytest.mark.real_vllm)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def environment():
    """Return the folder of an environment with vLLM for CPUs and NIXL."""
    named = os.environ.pop(ENVIRONMENT, None)  # the gateway would read this variable as an unknown setting
    if named is None:
        pytest.skip(f"{ENVIRONMENT} names no environment; `make test-handover` builds one")
    return Path(named).absolute()


@pytest.fixture(scope="session")
def model(environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    script = Path(__file__).with_name("make_model.py")
    subprocess.run([environment / "bin" / "python", script, folder, shipped_model_dir()], check=True, timeout=300)
    return folder


@dataclass
class Site:
    """The processes and their URLs."""

    gateway_url: str
    admin_url: str
    prefill_url: str
    decode_url: str
    prefill: Process

    def outcomes(self):
        """Return the KV handovers by outcome."""
        found = {}
        for line in httpx.get(f"{self.admin_url}/metrics").text.splitlines():
            if line.startswith("warmroute_handovers_total{"):
                name, _, value = line.partition("} ")
                found[name.split('"')[1]] = int(float(value))
        return found


def worker(environment, model, port, connector, folder):
    extra = {"shared_storage_path": str(folder)} if connector == "shared_store" else {"kv_lease_duration": 20}
    transfer = TRANSFER | {"kv_connector": VLLM_NAMES[connector], "kv_connector_extra_config": extra}
    side_port = free_ports(1)
    command = [
        str(environment / "bin" / "vllm"), "serve", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1",
        "--port", str(port), "--dtype", "float32", "--seed", "0", "--enforce-eager",
        "--distributed-executor-backend", "uni", "--max-model-len", "4096", "--max-num-seqs", "8",
        "--block-size", "32", "--kv-cache-memory-bytes", "33554432", "--enable-prompt-tokens-details",
        "--kv-transfer-config", json.dumps(transfer),
    ]  # fmt: skip
    return Process(command, f"worker {port}", QUIET | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port)})


@pytest.fixture(scope="module")
def site(environment, model, request, tmp_path_factory):
    """Start a prefill worker, a decode worker and the gateway, with the connector that the module names."""
    connector, folder = request.module.CONNECTOR, tmp_path_factory.mktemp("kv")
    with ExitStack() as stack:
        ports = [free_ports(1), free_ports(1)]
        workers = [worker(environment, model, port, connector, folder) for port in ports]
        for process in workers:
            stack.callback(process.stop)
        for process in workers:
            process.wait_for("Application startup complete", START_S)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        roles = [{"url": url, "role": role} for url, role in zip(urls, ("prefill", "decode"), strict=True)]
        handover = {
            "connector": connector,
            "lease_s": 20,
            "prefill_s": 5,
            "latency_s": 0,
            "transfer_tokens_per_s": 1e9,
        }
        public, admin = free_ports(1), free_ports(1)
        gateway = Process(
            warmroute(
                "serve", "--port", str(public), "--admin-port", str(admin), "--set", f"workers={json.dumps(roles)}",
                "--set", f"handover={json.dumps(handover)}",
                "--set", 'auth.allow=["transfer_params"]',
            ),
            "gateway",
        )  # fmt: skip
        stack.callback(gateway.stop)
        gateway.wait_for(r"\bready\b", 60.0)
        yield Site(f"http://127.0.0.1:{public}", f"http://127.0.0.1:{admin}", *urls, workers[0])
