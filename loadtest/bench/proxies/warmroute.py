"""The gateway twice: with round robin and no view of caches, and with defaults and an exact view."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from backends.simulated.settings import shipped_model_dir
from loadtest.bench.features import Features
from loadtest.bench.proxies.entrant import Entrant, Missing, NotAsStated, Place, Proxy, running
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import StartError
from loadtest.fleet.process import warmroute as our_own

ROUND_ROBIN = ("--policy", "round_robin", "--set", "residency.kv_events=false")
READY_LIMIT_S = 60.0
SOURCE, COMPILED = "warmroute", "warmroute compiled"
"""Names of the rows."""


def ours() -> list[Entrant]:
    """Return the two gateways that run from this source tree."""
    program = our_own()
    version = _version(program)
    return [
        Entrant("warmroute round_robin", version, "no KV events", starter("warmroute round_robin", ROUND_ROBIN)),
        Entrant(SOURCE, version, "default policy, exact residency from KV events", exact(SOURCE, program)),
    ]


def compiled(environment: Path) -> Entrant | Missing:
    """Return the gateway with defaults, from another environment with a compiled build."""
    return _compiled(environment, f"as {SOURCE}, compiled")


def _compiled(environment: Path, setup: str, features: Features | None = None) -> Entrant | Missing:
    program = [str(environment.absolute() / "bin" / "warmroute")]
    try:
        version = _version(program)
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return Missing(COMPILED, f"bin/warmroute of the environment does not run: {reason}")
    return Entrant(COMPILED, version, setup, exact(COMPILED, program, features))


def everything_on(compiled_env: Path) -> list[Entrant | Missing]:
    """Return the gateway with exact views and all features, from source and compiled."""
    setup = "default policy, exact residency from KV events, API keys, limits, routes and a decision log"
    source = our_own()
    return [
        Entrant(SOURCE, _version(source), setup, exact(SOURCE, source, Features())),
        _compiled(compiled_env, f"as {SOURCE}, compiled", Features()),
    ]


def _version(program: Sequence[str]) -> str:
    said = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    return said.split()[-1]


def exact(
    name: str, program: Sequence[str], features: Features | None = None
) -> Callable[[Place], AbstractContextManager[Proxy]]:
    """Return a start function that waits until the view of the stand-in's cache is exact.

    The settings are the defaults, with `features` on.
    """

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        admin = free_ports(1)
        given = ["--admin-port", str(admin), *(features.flags(place) if features is not None else ())]
        with starter(name, given, program)(place) as proxy:
            _wait_until_exact(name, admin)
            lines = features.lines if features is not None else ""
            yield replace(proxy, inspect=partial(_inspect, admin), lines=lines)

    return start


def starter(
    name: str, flags: Sequence[str], program: Sequence[str] | None = None, command: str = "serve"
) -> Callable[[Place], AbstractContextManager[Proxy]]:
    """Return a start function of `command` with `flags`. If they contain ``--config``, that file names the worker."""

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port, admin = free_ports(1), free_ports(1)
        line = [*(program or our_own()), command, "--host", "127.0.0.1", "--port", str(port)]
        line += ["--log-level", "warning", "--model-dir", str(shipped_model_dir()), *flags]
        if "--config" not in flags:
            line += [part for url in place.worker_urls for part in ("--worker", url)]
        if "--admin-port" in flags:
            admin = int(flags[flags.index("--admin-port") + 1])
        else:
            line += ["--admin-port", str(admin)]
        # PYTHONPATH may lead to this tree; another environment must import its own build instead.
        environment = {} if program is None else {"PYTHONPATH": ""}
        with running(name, line, port, place.folder, environment) as process:
            _wait_until_ready(name, admin)
            yield Proxy(name, f"http://127.0.0.1:{port}", process.pid)

    return start


def sidecar(name: str, program: Sequence[str]) -> Callable[[Place], AbstractContextManager[Proxy]]:
    """Return a start function of a sidecar beside the stand-in, with its defaults."""
    return starter(name, ["--set", "sidecar.drain_port=0"], program, "sidecar")


def _wait_until_ready(name: str, admin: int) -> None:
    end_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < end_s:
        try:
            if httpx.get(f"http://127.0.0.1:{admin}/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise StartError(f"{name} did not become ready within {READY_LIMIT_S:.0f} s")


def _wait_until_exact(name: str, admin: int) -> None:
    end_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < end_s:
        candidates = _candidates(admin)
        if candidates and all(candidate["residency"] == "exact" for candidate in candidates):
            return
        time.sleep(0.1)
    said = "; ".join(f"{candidate['residency']}: {candidate['reason']}" for candidate in _candidates(admin))
    raise StartError(f"{name} has no exact view of the stand-in after {READY_LIMIT_S:.0f} s: {said or 'no worker'}")


def _inspect(admin: int) -> str:
    """Check that the views are still exact, and that they predicted the tokens that the workers found cached."""
    answers = equal = blocks = 0
    for candidate in _candidates(admin):
        if candidate["residency"] != "exact":
            raise NotAsStated(f"the view of {candidate['id']} is {candidate['residency']}: {candidate['reason']}")
        compared = candidate["predicted_cached"]
        answers += compared["equal"] + compared["over"] + compared["under"]
        equal += compared["equal"]
        blocks += candidate["blocks"]
    if not answers or equal < 0.9 * answers:
        raise NotAsStated(f"cached tokens were foretold in {equal} of {answers} answers only")
    return f"exact, {blocks:,} blocks, cached tokens foretold in {equal:,} of {answers:,} answers"


def _candidates(admin: int) -> list[dict[str, Any]]:
    listed = httpx.get(f"http://127.0.0.1:{admin}/admin/v1/workers").raise_for_status().json()["workers"]
    return [candidate for worker in listed for candidate in worker["candidates"]]
