"""vLLM servers on the CPU that move real KV cache, and the gateway in front of them."""

import os
import subprocess
from contextlib import ExitStack
from ctypes import CDLL
from pathlib import Path

import pytest

from backends.simulated.settings import shipped_model_dir
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process
from tests.real_handover.connectors import QUIET, START_S
from tests.real_handover.site import Site

ENVIRONMENT = "WARMROUTE_PD_ENV"


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


@pytest.fixture(scope="module")
def start(environment, model, tmp_path_factory):
    """Start workers of the given roles with a connector, and the gateway. All end with the module."""
    with ExitStack() as stack:

        def started(connector, roles=("prefill", "decode")):
            store_port = _store(environment, stack) if connector == "lmcache" else None
            if connector == "mooncake":
                _need_verbs()
            site = Site(environment, model, connector, roles, tmp_path_factory.mktemp("kv"), store_port)
            stack.callback(site.stop)
            site.start()
            return site

        yield started


def _need_verbs():
    try:
        CDLL("libibverbs.so.1")
    except OSError:
        pytest.skip("Mooncake needs libibverbs.so.1 (Debian: libibverbs1)")


def _store(environment, stack):
    """Start LMCache's server. Return its port."""
    port = free_ports(1)
    command = [
        str(environment / "bin" / "python"), "-m", "lmcache.v1.multiprocess.server", "--host", "127.0.0.1",
        "--port", str(port), "--chunk-size", "32", "--l1-size-gb", "0.5", "--eviction-policy", "LRU",
        "--supported-transfer-mode", "auto", "--disable-observability",
    ]  # fmt: skip
    server = Process(command, "lmcache", QUIET)
    stack.callback(server.stop)
    server.wait_for("LMCache cache server is running", START_S)
    return port
