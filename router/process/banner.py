"""One line when a gateway is first ready: its workers, models, policy and worker caches, and a request to try."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from router.config.model import Config
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import SERVING
from router.residency.residency_map import ResidencyMap
from router.telemetry.logs import on_terminal, say
from router.tokenization.local.choices import SLOW_PRICE, WORKER
from router.tokenization.local.sources import Way
from router.tokenization.prompt_identifier import PromptIdentifier

log = logging.getLogger("warmroute.process")

POLL_S = 0.1
VIEWS_WAIT_S = 5.0
"""Longest wait for the self-tests once a worker is ready. The line then says what is known."""
NO_WORKERS = (
    "no workers are known, so no request can be served; give --worker URL, write workers or sources of workers "
    "(discovery) in the file, or add one with POST /admin/v1/workers"
)
_MOST_NAMED = 20
"""Models of which the line says how their prompts become token ids."""
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_GREEN, _PLAIN = "\x1b[1;32m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Readiness:
    """A fleet at one moment. `views` counts the candidates that take requests by the residency of their view.

    `settled`: all workers have been probed, and all views tested. `prompts` says by model how its prompts become token
    ids, and `slow` are the models whose prompts a worker tokenises though the settings do not ask for that.
    """

    workers: int
    ready: int
    models: tuple[str, ...]
    policy: str
    views: Mapping[str, int]
    settled: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    slow: tuple[str, ...] = ()


def readiness_of(
    fleet: Fleet, residency: ResidencyMap, watched: Mapping[str, Any], policy: str, identity: PromptIdentifier
) -> Readiness:
    """Return the readiness of `fleet`. `watched` is the state of each watch, as `Watcher.statistics` returns it."""
    serving = [endpoint for endpoint in fleet.endpoints if endpoint.state in SERVING]
    candidates = [candidate for endpoint in serving for candidate in endpoint.candidates]
    models = tuple(card.id for card in fleet.models.served())
    verdicts = {worker for watch in watched["endpoints"].values() for worker in watch["self_tests"]}
    return Readiness(
        workers=len(fleet.endpoints),
        ready=len(serving),
        models=models,
        policy=policy,
        views=Counter(residency.slot(candidate.slot).state().residency.value for candidate in candidates),
        settled=all(endpoint.health.probed for endpoint in fleet.endpoints)
        and all(candidate.id in verdicts for candidate in candidates),
        prompts={model: identity.describe(model) for model in models[:_MOST_NAMED]},
        slow=tuple(m for m in models if identity.sources.way(m) is Way.WORKER and identity.sources.chosen(m) != WORKER),
    )


async def announce(look: Callable[[], Readiness], address: str, config: Config) -> None:
    """Warn if there are no workers. Wait until one is ready and its view has been tested, then print the line.

    `address` is that of the public port, as HOST:PORT or the path of a Unix socket. With a scheme, as that of the
    endpoint picker, there is no command to try.
    """
    if not look().workers:
        log.warning(NO_WORKERS)
    while not look().ready:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    end_s = asyncio.get_running_loop().time() + VIEWS_WAIT_S
    while not look().settled and asyncio.get_running_loop().time() < end_s:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    print_line(look(), None if "://" in address else command(address, config, look().models))


def print_line(now: Readiness, command: str | None) -> None:
    """Print the line for people on a terminal, and log it otherwise."""
    if not log.isEnabledFor(logging.INFO):
        return
    if on_terminal():
        say(f"{_GREEN}{sentence(now)}{_PLAIN}" + ("" if command is None else f"; try: {command}"))
    else:
        log.info("ready", extra=_fields(now) if command is None else {**_fields(now), "try": command})


def sentence(now: Readiness) -> str:
    """Return the line without the request to try."""
    ready = str(now.ready) if now.ready == now.workers else f"{now.ready} of {now.workers}"
    workers = "worker" if ready == "1" else "workers"
    models = "1 model" if len(now.models) == 1 else f"{len(now.models)} models"
    return f"{ready} {workers} ready, {models}, policy {now.policy}, {_views(now.views)}{_prompts(now)}"


def _prompts(now: Readiness) -> str:
    """Return how prompts become token ids, with the price of the slow way."""
    if not now.prompts:
        return ""
    if now.slow:
        more = f" and {len(now.slow) - 1} more" if len(now.slow) > 1 else ""
        way = now.prompts.get(now.slow[0], "worker's /tokenize")
        return f", prompts of {now.slow[0]}{more} by {way}: {SLOW_PRICE} (`warmroute check` says how to mend it)"
    here = all(way.startswith("rendered locally") for way in now.prompts.values())
    return (
        ", prompts tokenised here" if here else f", prompts of {', '.join(f'{m}: {w}' for m, w in now.prompts.items())}"
    )


def command(address: str, config: Config, models: tuple[str, ...]) -> str:
    """Return a curl command that sends a short chat."""
    words = ["curl", *_target(address, config), "-H", "Content-Type: application/json"]
    if config.auth.api_keys or config.auth.api_keys_file is not None:
        words += ["-H", "Authorization: Bearer KEY"]
    model = models[0] if models else "MODEL"
    chat: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    return shlex.join([*words, "-d", json.dumps(chat)])


def _target(address: str, config: Config) -> list[str]:
    scheme = "http" if config.tls.cert_file is None else "https"
    if address.startswith(("/", ".")):
        return ["--unix-socket", address, f"{scheme}://localhost/v1/chat/completions"]
    host, _, port = address.rpartition(":")
    return [f"{scheme}://{_ANY_ADDRESS.get(host, host)}:{port}/v1/chat/completions"]


def _views(views: Mapping[str, int]) -> str:
    if len(views) == 1:
        (only,) = views
        return f"{only} views"
    return ", ".join(f"{count} {residency}" for residency, count in sorted(views.items())) + " views"


def _fields(now: Readiness) -> dict[str, Any]:
    return {
        "workers": now.workers,
        "workers_ready": now.ready,
        "models": list(now.models),
        "policy": now.policy,
        "views": dict(sorted(now.views.items())),
        "prompts": dict(now.prompts),
        "slow_prompts": list(now.slow),
    }
