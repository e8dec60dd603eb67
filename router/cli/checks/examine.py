"""Examine one worker: the accuracy of its worker cache, and the flags that would improve it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from backends.vllm.control import ProbeError, RefusedError, WorkerClient
from backends.vllm.probe import probe
from backends.vllm.server_info import read_connector
from backends.worker import Endpoint, KvEventSource, WorkerFacts
from policies.view import Residency
from router.cli.checks.examine_offload import BY_HASH, SELF_DESCRIBING_FLAG, listening, names_by_hash
from router.cli.checks.prompts import PromptOrigin, learned_identity, prompt_origins
from router.config.model import Config, WorkerConfig
from router.config.sources.environment import variable
from router.control.state.desired_state import endpoint_of
from router.placement.fleet.endpoints import DEFAULT_BLOCK_TOKENS
from router.security.tls import WorkerTls
from router.tokenization.local.choices import SLOW_PRICE
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.cache_trial import CacheTrial, CacheTrialResult, trial_body
from router.workers.selftest_rendering import compare_rendering

EVENTS_FLAG = (
    "--kv-events-config '"
    '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'
    "'"
)
"""The replay port is 100 above the event port, because each data-parallel rank takes the next port of both."""
CACHING_FLAG = "--enable-prefix-caching"
NO_CACHING = "without it no prefix is reused, and requests are placed by load alone"
_FILES_ADVICE = (
    "models.NAME.dir: DIR (setting of warmroute serve) with the model's tokenizer files, or a Hugging Face cache "
    "(HF_HOME) and a hub that can be reached"
)
_REQUEST_TIMEOUT_S = 60.0
FOREIGN_HOST = "warmroute-check.invalid"
"""A Host that no worker has."""
_TCP = re.compile(r"tcp://\[?(.+?)\]?:(\d+)")


@dataclass(frozen=True, slots=True)
class Advice:
    """A flag for the worker (or for Warmroute), and its benefit."""

    flag: str
    why: str


@dataclass(slots=True)
class WorkerReport:
    """The result for one worker. `problem` and `fix` are set if it cannot be used now."""

    id: str
    url: str
    facts: WorkerFacts | None = None
    problem: str | None = None
    fix: str | None = None
    residency: Residency = Residency.UNKNOWN
    reason: str = ""
    reports_cached_tokens: bool | None = None
    """None if it was not tried, or there was no answer."""
    prompts: dict[str, str] = field(default_factory=dict)
    chats: dict[str, dict[str, str]] = field(default_factory=dict)
    """By model and chat of the self-test: whether gateway and worker make the same token ids of it."""
    advice: list[Advice] = field(default_factory=list)


async def examine_all(config: Config, *, requests: bool) -> list[WorkerReport]:
    """Examine all configured workers at the same time. With `requests`, send one short prompt twice to each."""
    examined = (_examine(worker, number, config, requests) for number, worker in enumerate(config.workers))
    reports = list(await asyncio.gather(*examined))
    await _see_prompts(config, reports, requests)
    return reports


async def _see_prompts(config: Config, reports: list[WorkerReport], requests: bool) -> None:
    """Add the source of each model's token ids, and compare chats. Without equal ids no view of a cache is exact."""
    usable = [(number, report, report.facts) for number, report in enumerate(reports) if report.facts is not None]
    usable = [each for each in usable if each[1].problem is None]
    served = {card.id: (card, report.url) for _, report, facts in usable for card in facts.models}
    async with learned_identity(config, served) as identity:
        origins = await prompt_origins(identity, served)
        for number, report, facts in usable:
            _name_origins(report, facts, origins)
            if requests:
                await _compare_chats(config, config.workers[number], identity, report, facts)
            elif report.residency is Residency.EXACT:
                report.reason += "; chats are not compared without requests"


def _name_origins(report: WorkerReport, facts: WorkerFacts, origins: Mapping[str, PromptOrigin]) -> None:
    report.prompts = {card.id: origins[card.id].described for card in facts.models}
    unknown = [card.id for card in facts.models if card.parent is None and not origins[card.id].exact]
    if unknown and report.residency is Residency.EXACT:
        report.residency = Residency.APPROXIMATE
        report.reason = f"no token ids for {', '.join(unknown)}: {origins[unknown[0]].described}"
    if unknown:
        why = f"prompts of {', '.join(unknown)} are compared as text only"
        report.advice.append(Advice("--model-dir DIR (to warmroute serve)", why))
    slow = [card.id for card in facts.models if card.parent is None and origins[card.id].slow]
    if slow and not unknown:
        why = f"prompts of {', '.join(slow)} are tokenised by a worker: {SLOW_PRICE}"
        report.advice.append(Advice(_FILES_ADVICE, why))


async def _compare_chats(
    config: Config, worker: WorkerConfig, identity: PromptIdentifier, report: WorkerReport, facts: WorkerFacts
) -> None:
    """Compare the chats of the self-test for each base model that the gateway renders itself."""
    endpoint, block_tokens = endpoint_of(worker), _block_tokens(facts)
    async with WorkerClient(worker.api_key, WorkerTls(config.worker_tls).context_for) as client:
        for model in [card.id for card in facts.models if card.parent is None]:
            found = await compare_rendering(client, identity, endpoint, model, block_tokens)
            report.chats[model] = dict(found.chats)
            if found.wrong is not None:
                _name_difference(report, model, found.wrong)
            elif found.why_not is not None and report.residency is Residency.EXACT:
                report.reason += f"; chats of {model} not compared: {found.why_not}"


def _name_difference(report: WorkerReport, model: str, difference: str) -> None:
    if report.residency is Residency.EXACT:
        report.residency = Residency.APPROXIMATE
        report.reason = f"the worker renders chats of {model} differently ({difference})"
    why = f"give the file that vLLM got as --chat-template: the worker renders chats of {model} differently"
    report.advice.append(Advice(f"models.{model}.chat_template (setting of warmroute serve)", why))


def _block_tokens(facts: WorkerFacts) -> int:
    return max((cache.block_size for cache in facts.caches.values()), default=DEFAULT_BLOCK_TOKENS)


async def _examine(worker: WorkerConfig, number: int, config: Config, requests: bool) -> WorkerReport:
    endpoint = endpoint_of(worker)
    report = WorkerReport(endpoint.authority, endpoint.url)
    timeout_s = config.health.probe_timeout_s
    async with WorkerClient(worker.api_key, WorkerTls(config.worker_tls).context_for) as client:
        try:
            facts = await probe(client, endpoint, events=_source(worker), timeout_s=timeout_s)
            if config.handover.connector is not None:
                with suppress(ProbeError):
                    facts = replace(facts, connector=await read_connector(client, endpoint, timeout_s))
            report.facts = facts
        except ProbeError as error:
            report.problem = error.reason
            report.fix = f"start vLLM there, or write its address: curl {endpoint.url}/health must answer 200 from here"
            return report
        if facts.sleeping:
            report.problem, report.fix = "asleep", "wake it up"
        elif (refused := await _refuses_hosts(client, endpoint, timeout_s)) is not None:
            report.problem = f"refuses requests with a client's Host, which it gets by host: client ({refused})"
            report.fix = f"remove workers[{number}].host, or write the Host that the worker expects"
        elif not facts.models:
            report.problem, report.fix = await _why_no_models(client, endpoint, worker, number, timeout_s)
        else:
            await _judge(client, endpoint, report, facts, requests)
    return report


async def _refuses_hosts(client: WorkerClient, endpoint: Endpoint, timeout_s: float) -> str | None:
    """Return the refusal of a request with a foreign Host; None if there is none, or the worker gets its own Host."""
    if endpoint.host_header is not None:
        return None
    try:
        await client.get(endpoint, "/health", timeout_s, host=FOREIGN_HOST)
    except ProbeError as error:
        return error.reason
    return None


async def _why_no_models(
    client: WorkerClient, endpoint: Endpoint, worker: WorkerConfig, number: int, timeout_s: float
) -> tuple[str, str]:
    try:
        await client.get(endpoint, "/v1/models", timeout_s)
    except RefusedError as refusal:
        if refusal.status in (401, 403):
            given = f"refuses the key in workers[{number}].api_key" if worker.api_key else "requires an API key"
            in_variable = f'{variable(("workers",))}=\'[{{"url": "{endpoint.url}", "api_key": "KEY"}}]\''
            fix = f"write the key that vLLM got as --api-key: workers[{number}].api_key in the file, or {in_variable}"
            return f"{given}: /v1/models answered {refusal.status}", fix
    except ProbeError as error:
        return error.reason, f"see {endpoint.url}/v1/models"
    return "lists no models", f"see {endpoint.url}/v1/models"


async def _judge(
    client: WorkerClient, endpoint: Endpoint, report: WorkerReport, facts: WorkerFacts, requests: bool
) -> None:
    if facts.caches and not any(cache.prefix_caching for cache in facts.caches.values()):
        report.residency, report.reason = Residency.OFF, "the worker reports that prefix caching is off"
        report.advice.append(Advice(CACHING_FLAG, NO_CACHING))
        return
    unreachable = [address for address in _addresses(facts) if not await _connects(address)]
    report.residency, report.reason = _residency(facts, unreachable)
    report.advice += _events_advice(facts, unreachable)
    if not requests:
        return
    with listening([] if unreachable else facts.event_sources) as sockets:
        await _try(client, endpoint, report, facts)
        if await names_by_hash(sockets):
            report.advice.append(Advice(SELF_DESCRIBING_FLAG, BY_HASH))


async def _try(client: WorkerClient, endpoint: Endpoint, report: WorkerReport, facts: WorkerFacts) -> None:
    """Add the worker's reports about a prompt that it has just run."""
    block_tokens = _block_tokens(facts)
    found = await _found(client, endpoint, facts, block_tokens)
    if found is None:
        return
    report.reports_cached_tokens = found.reported is not None
    if found.proves_no_caching(block_tokens):
        report.residency = Residency.OFF
        report.reason = f"none of {found.prompt_tokens} prompt tokens were cached when the same prompt came again"
        report.advice = [Advice(CACHING_FLAG, f"{NO_CACHING}; its hit counter shows that it reuses none now")]
    elif not report.reports_cached_tokens:
        why = "responses then report cached tokens, which check predictions and correct estimated views"
        report.advice.append(Advice("--enable-prompt-tokens-details", why))


def _residency(facts: WorkerFacts, unreachable: list[str]) -> tuple[Residency, str]:
    if not facts.event_sources:
        return Residency.APPROXIMATE, "no KV events: its cache is estimated from the requests sent to it"
    if unreachable:
        return Residency.APPROXIMATE, f"its KV events cannot be reached at {', '.join(unreachable)}"
    return Residency.EXACT, "publishes KV events"


def _events_advice(facts: WorkerFacts, unreachable: list[str]) -> list[Advice]:
    if not facts.event_sources:
        return [Advice(EVENTS_FLAG, "its cache is then known exactly instead of estimated")]
    advice = [
        Advice(f"open {address}, or set the worker's kv_events.endpoint", "its KV events cannot be reached from here")
        for address in unreachable
    ]
    if any(source.replay_endpoint is None for source in facts.event_sources):
        why = "lost events are then fetched again; without it the view is unknown after a loss until relearned"
        advice.append(Advice(f"{EVENTS_FLAG} (replay_endpoint is missing now)", why))
    return advice


def _source(worker: WorkerConfig) -> KvEventSource | None:
    events = worker.kv_events
    return None if events is None else KvEventSource(0, events.endpoint, events.replay_endpoint)


def _addresses(facts: WorkerFacts) -> list[str]:
    both = ((source.endpoint, source.replay_endpoint) for source in facts.event_sources)
    return [address for pair in both for address in pair if address is not None]


async def _connects(address: str) -> bool:
    """Return whether a ``tcp://`` address accepts connections; other transports are not tested."""
    match = _TCP.fullmatch(address)
    if match is None:
        return True
    try:
        async with asyncio.timeout(2.0):
            _, writer = await asyncio.open_connection(match[1], int(match[2]))
    except (OSError, ValueError, TimeoutError):
        return False
    writer.close()
    return True


async def _found(
    client: WorkerClient, endpoint: Endpoint, facts: WorkerFacts, block_tokens: int
) -> CacheTrialResult | None:
    """Return the cached tokens of the second of two equal prompts. None if the worker cannot answer, such as for a
    model without completions."""
    card = next((card for card in facts.models if card.parent is None), facts.models[0])
    body = trial_body(card.id, block_tokens, card.max_model_len)
    trial = CacheTrial(client, endpoint, body, answer_s=_REQUEST_TIMEOUT_S)
    try:
        await trial.first()
        return await trial.second()
    except ProbeError:
        return None
