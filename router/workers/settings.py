"""Check the settings of workers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.mooncake import BOOTSTRAP_PORT_LABEL, bootstrap_of
from backends.vllm.handover.parameters import HandoverError
from backends.worker import parse_endpoint
from policies.wrappers.lane_plan import DECODE, LABEL, PREFILL
from router.config.model import STRUCK_OUT, Config, WorkerConfig
from router.config.problems import Finding
from router.config.tree import Path
from router.placement.fleet.roles import CONNECTOR, LLM_D, NO_CONNECTOR, ROLES, SIDECAR

_EVENT_ADDRESS = re.compile(r"tcp://[^\s/]+:\d{1,5}|ipc://.+")


def check(config: Config) -> Iterator[Finding]:
    yield from _names(config)
    seen: dict[str, int] = {}
    for index, worker in enumerate(config.workers):
        path = ("workers", index)
        found = list(worker_findings(worker, path))
        yield from found
        if any(where == (*path, "url") for where, _, _ in found):
            continue
        authority = parse_endpoint(worker.url).authority
        first = seen.setdefault(authority, index)
        if first != index:
            yield (*path, "url"), f"{authority} is a worker already (workers[{first}])", "remove one of the two"


def _names(config: Config) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for index, worker in enumerate(config.workers):
        if worker.name is None:
            continue
        first = seen.setdefault(worker.name, index)
        if first != index:
            problem = f"{worker.name!r} is the name of {config.workers[first].url} already (workers[{first}])"
            yield ("workers", index, "name"), problem, "choose another name"


def worker_findings(worker: WorkerConfig, path: Path) -> Iterator[Finding]:
    """Find mistakes in one worker's settings, from a file or from the admin API."""
    if worker.api_key == STRUCK_OUT:
        yield (*path, "api_key"), f"api_key is {STRUCK_OUT}, which stands for a key that is not shown", "write the key"
    try:
        parse_endpoint(worker.url)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        yield (*path, "url"), problem, fix
    yield from _events(worker, (*path, "kv_events"))
    connector = worker.labels.get(CONNECTOR)
    if connector not in (None, NO_CONNECTOR, *CONNECTORS):
        fix = f"write one of {', '.join(CONNECTORS)}, or {NO_CONNECTOR}, or leave it out"
        yield (*path, "labels", CONNECTOR), f"{connector!r} is no KV connector", fix
    elif connector in CONNECTORS and worker.role not in ROLES and len(set(CONNECTORS[connector].kv_roles)) == 2:
        problem = f"a worker with {connector} is for prefill or for decode, and the role is {worker.role}"
        yield (*path, "labels", CONNECTOR), problem, "set the role to prefill or decode, or leave the label out"
    sidecar = worker.labels.get(SIDECAR)
    if sidecar not in (None, LLM_D):
        yield (*path, "labels", SIDECAR), f"{sidecar!r} is no sidecar", f"write {LLM_D}, or leave it out"
    try:
        bootstrap_of(worker.url, worker.labels.get(BOOTSTRAP_PORT_LABEL))
    except HandoverError as error:
        yield (*path, "labels", BOOTSTRAP_PORT_LABEL), str(error), "write its VLLM_MOONCAKE_BOOTSTRAP_PORT"
    lane = worker.labels.get(LABEL)
    if lane not in (None, PREFILL, DECODE):
        yield (*path, "labels", LABEL), f"{lane!r} is no lane", f"write {PREFILL} or {DECODE}, or leave it out"


def _events(worker: WorkerConfig, path: Path) -> Iterator[Finding]:
    if worker.kv_events is None:
        return
    addresses = {"endpoint": worker.kv_events.endpoint, "replay_endpoint": worker.kv_events.replay_endpoint}
    for key, address in addresses.items():
        if address is not None and not _EVENT_ADDRESS.fullmatch(address):
            yield (*path, key), f"{address!r} is not a ZeroMQ address", "write tcp://HOST:PORT"
