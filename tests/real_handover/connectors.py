"""How vLLM and the gateway are started for each connector."""

import json
from dataclasses import dataclass, field

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process

LEASE_S = 12
START_S = 400.0
QUIET = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HOST_IP": "127.0.0.1", "UCX_TLS": "tcp",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_P2P_SIDE_CHANNEL_HOST": "127.0.0.1", "PYTHONHASHSEED": "0",
}  # fmt: skip
_HOST_MEMORY = {
    "spec_name": "HostTieringSpec",
    "spec_module_path": "shim.host_memory",
    "cpu_bytes_to_use": 67_108_864,
    "self_describing_kv_events": True,
}


@dataclass(frozen=True)
class Tried:
    """One connector: vLLM's name, what it needs beside it, and the gateway's settings."""

    vllm_name: str
    handover: dict
    kv_roles: tuple[str, str] = ("kv_both", "kv_both")
    """The prefill and the decode worker's."""
    extra: dict = field(default_factory=dict)
    port_label: str | None = None
    """The worker's label with the port of its side channel."""
    settings: dict = field(default_factory=dict)
    """Further settings of the gateway."""


CONNECTORS = {
    "nixl_pull": Tried("NixlConnector", {"connector": "nixl_pull"}, extra={"kv_lease_duration": LEASE_S}),
    "nixl_push": Tried("NixlPushConnector", {"connector": "nixl_push"}, extra={"kv_lease_duration": LEASE_S}),
    "mooncake": Tried(
        "MooncakeConnector",
        {"connector": "mooncake"},
        kv_roles=("kv_producer", "kv_consumer"),
        extra={"mooncake_protocol": "tcp"},
        port_label="mooncake_bootstrap_port",
    ),
    "shared_store": Tried("ExampleConnector", {"connector": "shared_store"}),
    "file_tier": Tried("OffloadingConnector", {"connector": "shared_store"}, extra=_HOST_MEMORY),
    "peer_tier": Tried(
        "OffloadingConnector",
        {"pulls": "offloading_peer"},
        extra=_HOST_MEMORY | {"secondary_tiers": [{"type": "p2p"}]},
        port_label="kv_peer",
        settings={"policy.rule": "round_robin"},
    ),
    "peer_pair": Tried(
        "OffloadingConnector",
        {"connector": "offloading_peer"},
        extra=_HOST_MEMORY | {"secondary_tiers": [{"type": "p2p"}]},
        port_label="kv_peer",
    ),
    "lmcache": Tried("LMCacheMPConnector", {"connector": "lmcache"}),
}


def extra_config(name, folder, store_port):
    """Return ``kv_connector_extra_config`` of a connector whose workers share `folder`, or the store at a port."""
    made = dict(CONNECTORS[name].extra)
    if name == "shared_store":
        made["shared_storage_path"] = str(folder)
    elif name == "file_tier":
        tier = {"type": "fs", "root_dir": str(folder), "n_read_threads": 2, "n_write_threads": 2}
        made["secondary_tiers"] = [tier]
    elif name == "lmcache":
        made |= {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": store_port}
    return made


class Worker:
    """One vLLM server. It can be killed, and started again on the same ports."""

    def __init__(self, environment, model, connector, role, extra):
        self.role = role
        self.port = free_ports(1)
        self.side_port = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.id = f"127.0.0.1:{self.port}"
        tried = CONNECTORS[connector]
        transfer = {
            "kv_connector": tried.vllm_name,
            "kv_role": tried.kv_roles[role == "decode"],
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": extra,
        }
        self._events_port = free_ports(2)
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self._events_port}",
            "replay_endpoint": f"tcp://*:{self._events_port + 1}",
        }
        self._command = [
            str(environment / "bin" / "vllm"), "serve", str(model), "--served-model-name", "tiny",
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--seed", "0", "--enforce-eager",
            "--distributed-executor-backend", "uni", "--max-model-len", "4096", "--max-num-seqs", "8",
            "--block-size", "32", "--kv-cache-memory-bytes", "33554432", "--enable-prompt-tokens-details",
            "--kv-events-config", json.dumps(events), "--kv-transfer-config", json.dumps(transfer),
        ]  # fmt: skip
        self._variables = QUIET | {
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
            "VLLM_P2P_SIDE_CHANNEL_PORT": str(self.side_port),
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.side_port),
            "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "20",
        }
        self._labels = {} if tried.port_label is None else {tried.port_label: str(self.side_port)}
        self.process = None
        self.ready = False

    def start(self):
        self.process = Process(self._command, f"worker {self.port}", self._variables)

    def wait(self):
        self.process.wait_for("Application startup complete", START_S)
        self.ready = True

    def kill(self):
        self.ready = False
        self.process.kill()

    def settings(self):
        """Return its entry in the gateway's settings. This version of vLLM does not tell where its KV events are."""
        events, replay = [f"tcp://127.0.0.1:{self._events_port + number}" for number in range(2)]
        source = {"endpoint": events, "replay_endpoint": replay}
        return {"url": self.url, "role": self.role, "labels": self._labels, "kv_events": source}
