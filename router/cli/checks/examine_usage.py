"""Examine whether streams can report their usage, which limits of tokens and the shown cached share depend on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from backends.vllm.control import ProbeError, RefusedError, WorkerClient
from backends.worker import WorkerFacts, parse_endpoint
from router.cli.checks.examine import WorkerReport
from router.config.model import Config, WorkerConfig
from router.requests.answers.usage import find_usage
from router.security.tls import WorkerTls

_PATH = "/v1/completions"
_TIMEOUT_S = 60.0
_ESTIMATE = "callers with tokens_per_minute pay the estimate of such streams: the prompt and max_tokens"


async def examine_usage(config: Config, reports: Sequence[WorkerReport], *, requests: bool) -> list[str]:
    """Return warnings about streams that report no usage. With `requests`, send one short stream to each worker."""
    limited = counts_tokens(config)
    warnings = []
    if not config.observe_usage:
        others = "those of callers with a token limit" if limited else "those whose clients ask"
        warnings.append(
            f"observe_usage is 0: of all streams only {others} report cached tokens and their length; "
            "set it to 0.05 to ask in a sample"
        )
    if limited and config.handover.connector is not None:
        warnings.append(f"streams with a KV handover are not asked for usage; {_ESTIMATE}")
    if requests and (limited or config.observe_usage > 0):
        tried = (
            _try(config, worker, report, report.facts, limited)
            for worker, report in zip(config.workers, reports, strict=True)
            if report.facts is not None and report.problem is None
        )
        warnings += [warning for warning in await asyncio.gather(*tried) if warning is not None]
    return warnings


def counts_tokens(config: Config) -> bool:
    """Return whether some caller has a limit of tokens."""
    return any(
        limits.tokens_per_minute for each in (config.limits.tenants, config.limits.keys) for limits in each.values()
    )


async def _try(
    config: Config, worker: WorkerConfig, report: WorkerReport, facts: WorkerFacts, limited: bool
) -> str | None:
    """Return the warning about a worker whose stream reports no usage; None also if it runs no completions."""
    card = next((card for card in facts.models if card.parent is None), facts.models[0])
    body = {"model": card.id, "prompt": "usage", "max_tokens": 1, "stream": True}
    asking = msgspec.json.encode({**body, "stream_options": {"include_usage": True}})
    async with WorkerClient(worker.api_key, WorkerTls(config.worker_tls).context_for) as client:
        endpoint = parse_endpoint(worker.url)
        try:
            answer = await client.post_json(endpoint, _PATH, asking, timeout_s=_TIMEOUT_S)
            why = "reports no usage"
        except RefusedError as refusal:
            if refusal.status not in (400, 422) or not await _serves(client, worker, msgspec.json.encode(body)):
                return None
            answer, why = b"", "refuses stream_options"
        except ProbeError:
            return None
    if find_usage([answer]).completion_tokens is not None:
        return None
    effect = _ESTIMATE if limited else "its streams show no cached tokens"
    return f"{report.id} {why} in a stream that asks for it; {effect}"


async def _serves(client: WorkerClient, worker: WorkerConfig, body: bytes) -> bool:
    """Return whether the worker takes the same request without the question."""
    try:
        await client.post_json(parse_endpoint(worker.url), _PATH, body, timeout_s=_TIMEOUT_S)
    except ProbeError:
        return False
    return True
