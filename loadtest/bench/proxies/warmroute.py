"""The gateway with an exact view of caches, from this source tree or from another environment."""

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
from loadtest.bench import features
from loadtest.bench.proxies.entrant import Entrant, Missing, NotAsStated, Place, Proxy, running
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import StartError
from loadtest.fleet.process import warmroute as our_own

READY_LIMIT_S = 60.0
SOURCE, COMPILED = "warmroute", "warmroute compiled"
"""Names of the rows."""


def ours(everything_on: bool, name: str = SOURCE) -> Entrant:
    """Return the gateway of this source tree."""
    program = our_own()
    return _entrant(name, program, _version(program), everything_on)


def other(label: str, environment: Path, everything_on: bool) -> Entrant | Missing:
    """Return the gateway that is installed in another environment."""
    name, program = f"warmroute {label}", [str(environment.absolute() / "bin" / "warmroute")]
    try:
        version = _version(program)
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return Missing(name, f"bin/warmroute of the environment does not run: {reason}")
    return _entrant(name, program, version, everything_on)


def _entrant(name: str, program: Sequence[str], version: str, everything_on: bool) -> Entrant:
    further = ", API keys, limits, routes and a decision log" if everything_on else ""
    setup = f"default policy, exact residency from KV events{further}"
    return Entrant(name, version, setup, exact(name, program, everything_on))


def _version(program: Sequence[str]) -> str:
    said = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    return said.split()[-1]


def exact(name: str, program: Sequence[str], everything_on: bool) -> Callable[[Place], AbstractContextManager[Proxy]]:
    """Return a start function that waits until the view of the stand-in's cache is exact."""

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        admin = free_ports(1)
        given = ["--admin-port", str(admin), *(features.flags(place) if everything_on else ())]
        with starter(name, given, program)(place) as proxy:
            _wait_until_exact(name, admin)
            lines = features.KEY_LINE if everything_on else ""
            yield replace(proxy, inspect=partial(_inspect, admin), lines=lines, program=tuple(program))

    return start


def starter(
    name: str, flags: Sequence[str], program: Sequence[str]
) -> Callable[[Place], AbstractContextManager[Proxy]]:
    """Return a start function with `flags`. If they contain ``--config``, that file names the worker."""

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port, admin = free_ports(1), free_ports(1)
        line = [*program, "serve", "--host", "127.0.0.1", "--port", str(port)]
        line += ["--log-level", "warning", "--model-dir", str(shipped_model_dir()), *flags]
        if "--config" not in flags:
            line += [part for url in place.worker_urls for part in ("--worker", url)]
        if "--admin-port" in flags:
            admin = int(flags[flags.index("--admin-port") + 1])
        else:
            line += ["--admin-port", str(admin)]
        # PYTHONPATH may lead to this tree; another environment must import its own build instead.
        environment = {} if list(program) == our_own() else {"PYTHONPATH": ""}
        with running(name, line, port, place.folder, environment) as process:
            _wait_until_ready(name, admin)
            yield Proxy(name, f"http://127.0.0.1:{port}", process.pid)

    return start


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
