"""Options of an embedded worker, and the addresses on which it listens."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

SHIPPED_MODEL = "warmroute-simulated"
"""Served name of the tokenizer in Warmroute's package."""


def shipped_model_dir() -> Path:
    """Return the folder of the packaged tokenizer, chat template and model shape."""
    return Path(str(files("backends.simulated").joinpath("model")))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """All options of an embedded worker. An option that ``vllm serve`` has too has the same name.

    For port 0 the operating system chooses a port (read it from `BoundWorker`). `time_scale` stretches every modelled
    wait (0 = no waiting at all), `speed` scales the modelled hardware itself. None means the value of the profile or
    the model folder.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model_name: str = SHIPPED_MODEL
    model_dir: Path | None = None
    chat_template: str | None = None
    lora_adapters: tuple[str, ...] = ()
    """Served names of LoRA adapters. Each adapter has its own cached blocks, like a real one."""

    profile: str = "llama-3.1-8b-h100"
    seed: int = 0
    jitter: float = 0.05
    speed: float = 1.0
    time_scale: float = 1.0

    num_blocks: int | None = None
    kv_gib: float | None = None
    """KV cache in GiB of the model folder's own KV layout, if `num_blocks` is not set."""
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    max_num_queued_reqs: int | None = None
    """Requests in flight, running ones included, beyond which further ones get 503; None = no limit."""

    default_max_tokens: int = 128
    """Answer length of a chat request without one (a completions request: 16, as in OpenAI's API)."""
    stop_probability: float = 0.0
    """Chance that the model stops after any one token, for requests without ``ignore_eos``."""

    character_share: float = 0.0
    """Chance that an answer goes on with an emoji or a Chinese character of several tokens."""

    prompt_tokens_details: bool = True
    """Report ``usage.prompt_tokens_details.cached_tokens`` (vLLM: --enable-prompt-tokens-details)."""
    log_stats: bool = True
    """Count requests, loads and cache use on /metrics (vLLM: off by --disable-log-stats)."""
    openai_only: bool = False
    """Serve /v1/chat/completions, /v1/completions and /v1/models alone, as a server that is not vLLM does."""
    request_id_headers: bool = False
    """Answer with X-Request-Id (vLLM: --enable-request-id-headers)."""
    dev_mode: bool = False
    """Serve /sleep, /wake_up, /is_sleeping, /pause, /resume, /is_paused and /reset_prefix_cache (vLLM:
    VLLM_SERVER_DEV_MODE=1)."""
    shutdown_timeout_s: float = 0.0
    """How long running requests go on after SIGTERM (vLLM: --shutdown-timeout). What is left then falls silent."""
    silent_shutdown: bool = False
    """Fall silent at SIGTERM, instead of aborting requests: vLLM does either, when it has no shutdown timeout."""
    deaths: bool = False
    """Serve POST /death, which ends the worker in one of vLLM's ways, at once or at a token of a stream."""
    runtime_lora: bool = False
    """Serve /v1/load_lora_adapter and /v1/unload_lora_adapter (vLLM: VLLM_ALLOW_RUNTIME_LORA_UPDATING)."""

    kv_connector: (
        Literal["nixl_pull", "nixl_push", "mooncake", "moriio_pull", "shared_store", "lmcache", "offloading_peer"]
        | None
    ) = None
    """Hand the KV cache of prompts over between embedded workers, as with this connector. None: no connector. With
    offloading_peer they keep blocks in host memory, and pull from each other."""
    kv_store_dir: Path | None = None
    """The folder that stands for the store of the connectors shared_store and lmcache. All workers need the same."""
    kv_host_blocks: int | None = None
    """Blocks in host memory with offloading_peer. None: four times those of the GPU."""
    kv_lease_s: float = 30.0
    """How long handed-over blocks wait for the other worker (vLLM: kv_lease_duration; with Mooncake both workers wait
    for VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT)."""
    kv_transfer_tokens_per_s: float = 400_000.0
    """Prompt tokens moved per second. Llama 3.1 8B has 128 KiB per token, so the default is 50 GB/s."""

    kv_events: bool = True
    kv_events_port: int = 0
    kv_events_replay_port: int = 0
    kv_events_topic: str = "kv-events"
    kv_events_buffer_steps: int = 10_000
    kv_events_hwm: int = 100_000
    """Batches queued per slow subscriber before it loses some."""

    @property
    def folder(self) -> Path:
        return self.model_dir if self.model_dir is not None else shipped_model_dir()


@dataclass(frozen=True, slots=True)
class BoundWorker:
    """The addresses of a worker. The KV event addresses are None if events are off."""

    host: str
    port: int
    kv_events_endpoint: str | None
    kv_events_replay_endpoint: str | None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"
