"""``warmroute fleet`` as a process, and the gateway whose command it prints."""

import shlex

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute


def fleet(*arguments: str) -> Process:
    return Process(warmroute("fleet", *arguments), "fleet")


def printed_gateway(process: Process, *flags: str, limit_s: float = 60.0) -> tuple[Process, str, str]:
    """Start the gateway that a fleet prints. Return its process, once it is ready, and its two URLs."""
    command = shlex.split(process.wait_for(r"^warmroute serve (--set .*)$", limit_s).group(1))
    public, admin = free_ports(1), free_ports(1)
    ports = ["--port", str(public), "--admin-port", str(admin)]
    gateway = Process(warmroute("serve", *command, *ports, *flags), "gateway")
    gateway.wait_for(r"\bready\b")
    return gateway, f"http://127.0.0.1:{public}", f"http://127.0.0.1:{admin}"
