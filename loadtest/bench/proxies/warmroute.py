"""The gateway with an exact cache of caches, from this source tree or from another environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from backends.simulated.settings import shipped_model_dir
from loadtest.bench.frames import MODEL
from loadtest.bench.proxies.entrant import Entrant, NotAsStated, NotInstalled, Place, Proxy, running
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import until
from loadtest.fleet.process import warmroute as our_own
from router.security.keys import KeyEntry, digest_of

READY_LIMIT_S = 60.0
SOURCE, COMPILED = "warmroute", "warmroute compiled"
"""Names of the rows."""
KEYS = 100
_KEY = "wr-bench-bench-bench-bench-bench-bench"
KEY_HEADER = {"authorization": f"Bearer {_KEY}"}
"""The header of the bench's caller, with everything on."""
_ENOUGH = 1_000_000_000_000


def ours(everything_on: bool, name: str = SOURCE) -> Entrant:
    """Return the gateway of this source tree."""
    return _entrant(name, our_own(), everything_on)


def other(name: str, environment: Path, everything_on: bool) -> Entrant:
    """Return the gateway that is installed in another environment.

    Raises:
        NotInstalled: there is none.
    """
    try:
        return _entrant(name, [str(environment.absolute() / "bin" / "warmroute")], everything_on)
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NotInstalled(f"bin/warmroute of the environment does not run: {reason}") from None


def _entrant(name: str, program: Sequence[str], everything_on: bool) -> Entrant:
    said = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    further = ", API keys, limits, routes and a decision log" if everything_on else ""
    setup = f"default policy, exact residency from KV events{further}"

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        settings = everything(place) if everything_on else {}
        with started(name, program, place, settings) as (proxy, admin_url):
            until(lambda: _exact(admin_url), lambda: f"{name} sees {_candidates(admin_url)}", READY_LIMIT_S)
            proxy.inspect = partial(_inspect, admin_url)
            proxy.headers = KEY_HEADER if everything_on else {}
            yield proxy

    return Entrant(name, said.split()[-1], setup, start)


@contextmanager
def started(
    name: str, program: Sequence[str], place: Place, settings: dict[str, Any], *flags: str, tokenizer: bool = True
) -> Iterator[tuple[Proxy, str]]:
    """Run a gateway in front of the stand-in; yield it and its admin URL when it is ready.

    `settings` are written to its configuration, which names the stand-in's workers unless they do.
    """
    port, admin = free_ports(1), free_ports(1)
    config = place.folder / "settings.yaml"
    config.write_text(json.dumps({"workers": [{"url": url} for url in place.worker_urls], **settings}))
    line = [*program, "serve", "--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin), *flags]
    line += ["--log-level", "warning", "--config", str(config)]
    line += ["--model-dir", str(shipped_model_dir())] if tokenizer else []
    # PYTHONPATH may lead to this tree; another environment must import its own build instead.
    environment = {} if list(program) == our_own() else {"PYTHONPATH": ""}
    admin_url = f"http://127.0.0.1:{admin}"
    with running(name, line, port, place.folder, environment) as process:
        until(lambda: _ready(admin_url), lambda: f"{name} is not ready", READY_LIMIT_S)
        url = f"http://127.0.0.1:{port}"
        yield Proxy(name, url, process.pid, place.worker_urls[0], program=tuple(program)), admin_url


def _ready(admin_url: str) -> bool:
    try:
        return httpx.get(f"{admin_url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def _exact(admin_url: str) -> bool:
    candidates = _candidates(admin_url)
    return bool(candidates) and all(candidate["residency"] == "exact" for candidate in candidates)


def _inspect(admin_url: str) -> str:
    """Check that the views are still exact, and that they predicted the tokens that the workers found cached."""
    answers = equal = blocks = 0
    for candidate in _candidates(admin_url):
        if candidate["residency"] != "exact":
            raise NotAsStated(f"the view of {candidate['id']} is {candidate['residency']}: {candidate['reason']}")
        compared = candidate["predicted_cached"]
        answers += compared["equal"] + compared["over"] + compared["under"]
        equal += compared["equal"]
        blocks += candidate["blocks"]
    if not answers or equal < 0.9 * answers:
        raise NotAsStated(f"cached tokens were foretold in {equal} of {answers} answers only")
    return f"exact, {blocks:,} blocks, cached tokens foretold in {equal:,} of {answers:,} answers"


def _candidates(admin_url: str) -> list[dict[str, Any]]:
    listed = httpx.get(f"{admin_url}/admin/v1/workers").raise_for_status().json()["workers"]
    return [candidate for worker in listed for candidate in worker["candidates"]]


def everything(place: Place) -> dict[str, Any]:
    """Return the settings of a gateway with everything on.

    API keys of a hundred callers, cache isolation, limits too high to refuse anything, an alias of the model, four
    routes of which the last one matches, and a decision log of every request.
    """
    others = [KeyEntry(f"key{number}", digest_of(b"%d" % number)).line for number in range(KEYS - 1)]
    limits = {
        "max_concurrent_requests": _ENOUGH,
        "requests_per_minute": _ENOUGH,
        "tokens_per_minute": _ENOUGH,
        "burst_tokens": _ENOUGH,
    }
    return {
        "auth": {"api_keys": [*others, KeyEntry("bench", digest_of(_KEY.encode())).line]},
        "tenants": {"bench": {"keys": ["bench"], "max_queued_requests": 1_000}},
        "limits": {"tenants": {"default": limits}},
        "models": {MODEL: {"aliases": ["chat"]}},
        "routes": [
            {"name": "eval", "match": {"header": {"x-team": "eval"}}, "max_requests": 32},
            {"name": "long", "match": {"prompt_tokens": ">32000"}},
            {"name": "other", "match": {"model": "another-model"}},
            {"name": "all"},
        ],
        "decision_log": {"path": str(place.folder / "decisions.jsonl")},
    }
