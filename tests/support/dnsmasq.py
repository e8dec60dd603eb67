"""A real DNS server, dnsmasq, whose names lie in the zone `test`."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import pytest

from tests.support.waiting import block_until

_SETTINGS = """\
port={port}
listen-address={host}
bind-interfaces
no-resolv
no-hosts
no-daemon
{local}
local-ttl={ttl_s}
addn-hosts={hosts}
host-record=empty.test,::1
srv-host=_vllm._tcp.test,one.test,8001,0
srv-host=_vllm._tcp.test,two.test,8002,0
srv-host=_vllm._tcp.test,spare.test,8003,10
"""


def _free_port(host: str) -> int:
    """Return a port that is free for UDP and TCP: dnsmasq listens on both."""
    for _ in range(100):
        with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            tcp.bind((host, 0))
            port: int = tcp.getsockname()[1]
            try:
                udp.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


class Dnsmasq:
    """One dnsmasq, whose addresses of names a test changes. Without the program the test is skipped."""

    def __init__(self, folder: Path, ttl_s: int = 1, local: str = "local=/test/", host: str = "127.0.0.1") -> None:
        if shutil.which("dnsmasq") is None:
            pytest.skip("there is no dnsmasq (Debian package dnsmasq-base)")
        self.host, self.port = host, _free_port(host)
        self._hosts, self._conf = folder / "hosts", folder / "dnsmasq.conf"
        settings = _SETTINGS.format(port=self.port, host=host, ttl_s=ttl_s, hosts=self._hosts, local=local)
        self._conf.write_text(settings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> str:
        """Address and port, as the setting `nameservers` takes them."""
        return f"{self.host}:{self.port}"

    def has(self, **hosts: Sequence[str]) -> None:
        """Give each name in the zone these addresses, and remove every other name."""
        lines = [f"{address} {name}.test" for name, addresses in hosts.items() for address in addresses]
        self._hosts.write_text("\n".join(lines) + "\n")
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)  # read the hosts again

    def start(self) -> None:
        command = ["dnsmasq", f"--conf-file={self._conf}"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        block_until(self._answers, 10.0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            dns.query.udp(dns.message.make_query("one.test", "A"), self.host, port=self.port, timeout=0.2)
        except (dns.exception.DNSException, OSError):
            return False
        return True
