"""vLLM's own servers in clock mode (`backends/clock`), one process each: find, configure and start them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from backends.clock.settings import ClockSettings
from backends.simulated.settings import SHIPPED_MODEL, shipped_model_dir
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, StartError, uninterrupted, until

ENVIRONMENT = Path(".venv-vllm")
"""Folder that ``make vllm-env`` creates."""
START_LIMIT_S = 300.0
"""A server needs 25 to 60 s of one core, and several start at once on few cores."""
MAX_RANKS = 8
"""Number of data-parallel ranks for which ports are reserved: vLLM counts event ports up from the first rank's."""
CONNECTOR = {
    "kv_connector": "ClockConnector",
    "kv_connector_module_path": "backends.clock.connector",
    "kv_role": "kv_both",
}
"""vLLM's ``--kv-transfer-config`` for the clock's connector."""
_QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmWorker:
    """One ``vllm serve`` in clock mode.

    If `model_dir` is None, the shipped tokenizer and model shape (1 KiB of KV per token) are served under their own
    name. Any other folder is served under its path, as is vLLM's default. `flags` come last and override the flags set
    here. A `port` of 0 is chosen when the worker starts. `events_port` is the first of `MAX_RANKS` ports for events;
    the same number of ports for replay follows. `dev_mode` enables ``/reset_prefix_cache`` and similar paths of vLLM.
    `kv_connector` hands the KV cache of prompts over between servers (`backends.clock.connector`).
    """

    executable: Path
    model_dir: Path | None = None
    clock: ClockSettings = field(default_factory=ClockSettings)
    port: int = 0
    events_port: int = 0
    kv_events: bool = True
    replay: bool = True
    buffer_steps: int = 10_000
    topic: str = "kv-events"
    dev_mode: bool = True
    kv_connector: bool = False
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def command(self, port: int, events_port: int) -> list[str]:
        """Return the command line of a server that listens on `port` and publishes KV events from `events_port` on."""
        model = [str(self.model_dir)]
        if self.model_dir is None:
            model = [str(shipped_model_dir()), "--served-model-name", SHIPPED_MODEL]
        serving = ["--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--max-model-len", "auto"]
        events = ["--kv-events-config", self._kv_events(events_port)] if self.kv_events else []
        handing = ["--kv-transfer-config", json.dumps(CONNECTOR)] if self.kv_connector else []
        details = "--enable-prompt-tokens-details"
        return [str(self.executable), "serve", *model, *serving, details, *events, *handing, *self.flags]

    def _kv_events(self, port: int) -> str:
        config: dict[str, object] = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{port}",
            "topic": self.topic,
            "buffer_steps": self.buffer_steps,
        }
        if self.replay:
            config["replay_endpoint"] = f"tcp://*:{port + MAX_RANKS}"
        return json.dumps(config)

    def variables(self) -> dict[str, str]:
        dev = {"VLLM_SERVER_DEV_MODE": "1"} if self.dev_mode else {}
        host = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"} if self.kv_connector else {}
        return {**_QUIET, **dev, **host, **self.clock.environment(), **dict(self.environment)}


class RunningVllm:
    """A started server. `url` answers once `wait_healthy` has returned."""

    def __init__(self, worker: VllmWorker, name: str, log: Path | None = None) -> None:
        port = worker.port or free_ports(1)
        self.worker = worker
        self.url = f"http://127.0.0.1:{port}"
        self.events_port = worker.events_port or free_ports(2 * MAX_RANKS)
        self.process = Process(worker.command(port, self.events_port), name, worker.variables(), log)

    @property
    def kv_events(self) -> dict[str, str]:
        """Return rank 0's event endpoint for the gateway's configuration: vLLM before 0.33 does not report it."""
        source = {"endpoint": f"tcp://127.0.0.1:{self.events_port}"}
        if self.worker.replay:
            source["replay_endpoint"] = f"tcp://127.0.0.1:{self.events_port + MAX_RANKS}"
        return source

    def healthy(self) -> bool:
        """Return whether the server answers now.

        Raises:
            StartError: the process has ended.
        """
        if not self.process.alive:
            raise self.process.ended()
        try:
            return httpx.get(f"{self.url}/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_healthy(self, limit_s: float = START_LIMIT_S) -> None:
        """Wait until the server answers.

        Raises:
            StartError: it ended, or did not answer in time.
        """
        until(self.healthy, lambda: f"{self.process.name} was not healthy:\n{self.process.tail()}", limit_s, 0.2)

    def reset_prefix_cache(self) -> None:
        httpx.post(f"{self.url}/reset_prefix_cache", timeout=10).raise_for_status()


def start_vllm(
    stack: ExitStack, workers: Sequence[VllmWorker], ready: Callable[[int], None], logs: Path | None
) -> list[tuple[str, Process]]:
    """Start all servers at once; return URLs and processes once all are healthy. `ready` is called for each of them.

    Raises:
        StartError: a server did not start.
    """
    servers: list[RunningVllm] = []
    for number, worker in enumerate(workers):
        log = logs / f"vllm-{number}.log" if logs is not None else None
        with uninterrupted():
            servers.append(RunningVllm(worker, f"vllm {number}", log))
            stack.callback(servers[-1].process.stop)
    for server in servers:  # at the end all get the signal before one is waited for, since each takes seconds to end
        stack.callback(server.process.terminate)
    for number, server in enumerate(servers):
        server.wait_healthy()
        ready(number)
    return [(server.url, server.process) for server in servers]


def find_vllm(environment: Path | None = None) -> Path:
    """Return the path of the ``vllm`` command.

    With `environment` it is the one installed there. Otherwise the folder of this Python, `.venv-vllm` in the current
    directory, and PATH are searched.

    Raises:
        StartError: it was not found; the message says how to install it.
    """
    if environment is not None:
        candidates = [environment / "bin" / "vllm"]
    else:
        candidates = [Path(sys.executable).with_name("vllm"), ENVIRONMENT / "bin" / "vllm"]
        candidates += map(Path, filter(None, [shutil.which("vllm")]))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.absolute()
    tried = ", ".join(map(str, candidates))
    raise StartError(
        f"no vllm command ({tried}); run `make vllm-env` in a checkout, or pip install 'warmroute[vllm]' and name its "
        "environment by --vllm-env"
    )
