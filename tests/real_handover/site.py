"""vLLM servers that move real KV cache, the gateway in front of them, and what tests ask of both."""

import asyncio
import json
import os
import random
import re
import signal
import time
from contextlib import contextmanager

import httpx

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute
from loadtest.soak.fleet import Admin
from loadtest.soak.gauges import left_over
from tests.real_handover.asking import ask, completion
from tests.real_handover.connectors import CONNECTORS, LEASE_S, Worker, extra_config

HANDOVER = {
    "lease_s": LEASE_S, "latency_s": 0,
    "transfer_tokens_per_s": 1e9,
}  # fmt: skip
PATIENT = {"health.probe_timeout_s": 5, "decisions_kept": 500}
"""Workers that stand still are not lost within a test."""


class Site:
    def __init__(self, environment, model, connector, roles, folder, store_port):
        extra = extra_config(connector, folder, store_port)
        self.workers = [Worker(environment, model, connector, role, extra) for role in roles]
        self.prefills = [worker for worker in self.workers if worker.role == "prefill"]
        self.decodes = [worker for worker in self.workers if worker.role != "prefill"]
        self._handover, self._settings = CONNECTORS[connector].handover | HANDOVER, CONNECTORS[connector].settings
        public, admin = free_ports(1), free_ports(1)
        self.url, self.admin_url = f"http://127.0.0.1:{public}", f"http://127.0.0.1:{admin}"
        self.gateway = None

    def start(self):
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.wait()
        self.new_gateway()

    def new_gateway(self):
        """Start the gateway, in place of one that has learned speeds."""
        if self.gateway is not None:
            self.gateway.stop()
        self.gateway = self._gateway(self.url, self.admin_url, {"auth.allow": ["transfer_params"]})

    def _gateway(self, url, admin_url, sets, **handover):
        ports = "--port", url.rpartition(":")[2], "--admin-port", admin_url.rpartition(":")[2]
        sets = sets | {"workers": [worker.settings() for worker in self.workers], "handover": self._handover | handover}
        sets |= self._settings | PATIENT
        flags = [part for name, value in sets.items() for part in ("--set", f"{name}={_given(value)}")]
        gateway = Process(warmroute("serve", *ports, *flags), "gateway")
        gateway.wait_for(r"\bready\b", 60.0)
        return gateway

    @contextmanager
    def another_gateway(self, sets=None, **handover):
        """Start a gateway beside the other one, which trusts no caller unless `sets` says so. Yield its URL."""
        url, admin_url = [f"http://127.0.0.1:{free_ports(1)}" for _ in range(2)]
        gateway = self._gateway(url, admin_url, sets or {}, **handover)
        try:
            yield url
        finally:
            gateway.stop()

    def stop(self):
        for one in (self.gateway, *[worker.process for worker in self.workers]):
            if one is not None:
                thaw(one)
                one.stop()

    # what they say

    def outcomes(self, of="handovers"):
        lines = httpx.get(f"{self.admin_url}/metrics").text.splitlines()
        found = [re.match(rf'warmroute_{of}_total\{{outcome="(\w+)"\}} (\S+)', line) for line in lines]
        return {one[1]: int(float(one[2])) for one in found if one}

    async def steps(self, step):
        """Return how many of one step of KV handovers have ended."""
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"{self.admin_url}/metrics")).text
        found = re.search(rf'^warmroute_handover_seconds_count\{{step="{step}"\}} (\S+)', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def decisions(self):
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{self.admin_url}/admin/v1/decisions", params={"limit": 10})
        return answer.json()["decisions"]

    async def decision(self, begins="decode after"):
        """Return the newest decision that is not over and has such a reason, a handover's; None if there is none."""
        running = [one for one in await self.decisions() if one["outcome"] == "running"]
        return next((one for one in running if one["reason"].startswith(begins)), None)

    async def at_rest(self):
        """Wait until no live worker has a block in use, and the gateway has nothing reserved."""
        for worker in self.workers:
            if worker.ready:
                await until(lambda worker=worker: metric(worker, "kv_cache_usage_perc") == 0.0, 3 * LEASE_S)
        admin = Admin(self.admin_url)
        try:
            await until(lambda: self._nothing_left(admin))
        finally:
            await admin.aclose()

    async def recovered(self):
        """Wait until the gateway trusts all workers again: one that failed has to succeed with one request first."""
        admin = Admin(self.admin_url)

        async def all_ready():
            states = await admin.states()
            doubted = [worker for worker in self.workers if worker.ready and states[worker.id] != "ready"]
            for worker in doubted:
                await ask(self.url, *completion(random.random()), prefill=worker if worker in self.prefills else None)
            return not doubted

        try:
            await until(all_ready, 60.0)
        finally:
            await admin.aclose()

    @staticmethod
    async def _nothing_left(admin):
        return not left_over(await admin.workers(), await admin.metrics())


def _given(value):
    return value if isinstance(value, str) else json.dumps(value)


def freeze(process):
    """Let a process and its children stand still: a server's engine is one of them."""
    os.killpg(process.pid, signal.SIGSTOP)


def thaw(process):
    if process.alive:
        os.killpg(process.pid, signal.SIGCONT)


@contextmanager
def frozen(*workers):
    """Let the workers stand still for the length of the block."""
    for worker in workers:
        freeze(worker.process)
    try:
        yield
    finally:
        for worker in workers:
            thaw(worker.process)


def metric(worker, name, **labels):
    """Return the sum of a worker's samples of one of vLLM's metrics."""
    total = 0.0
    for line in httpx.get(f"{worker.url}/metrics", timeout=30).text.splitlines():
        if line.startswith(f"vllm:{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rpartition(" ")[2])
    return total


async def until(condition, within_s=30.0):
    """Return what `condition` says as soon as that is true. What it returns may be awaited."""
    end_s = time.monotonic() + within_s
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end_s, "did not happen in time"
        await asyncio.sleep(0.05)
