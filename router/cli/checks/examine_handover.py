"""Examine the workers between which KV cache is to be handed over: their roles, whether they are alike, and a try."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from backends.vllm.control import ProbeError, WorkerClient
from backends.vllm.handover.answer_apis import COMPLETIONS
from backends.vllm.handover.connector import Connector, FactSource, HandoverPeer, Legs
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.mooncake import BOOTSTRAP_PATH, BOOTSTRAP_PORT_LABEL, bootstrap_of, read_engine_ids
from backends.vllm.handover.nixl import misses_side_channel_host
from backends.vllm.handover.parameters import HandoverError, TransferParams, is_loopback
from backends.vllm.handover.request_body import prefill_body, split
from backends.worker import WorkerFacts, parse_endpoint
from router.cli.checks.examine import WorkerReport
from router.config.model import Config, WorkerConfig
from router.placement.fleet.endpoints import DECODE, PREFILL, kv_report
from router.placement.fleet.roles import FORMAT, prefills, receives
from router.security.tls import WorkerTls

_PATH = "/v1/completions"
_TIMEOUT_S = 60.0
_PROMPT = "A prompt by which Warmroute checks that this worker hands KV cache over to other workers."
_SIDE_CHANNEL_FIX = "set VLLM_NIXL_SIDE_CHANNEL_HOST to an address that the decode workers reach"
_SEVERAL = "MultiConnector"
"""vLLM's connector of several; it does not say which."""
_REPORTED = ("the type of the KV cache", "the hash algorithm", "the connector", "the type of the model")
"""The members of `KvReport`, in words."""
_STORED_WORDS = 200
"""Length of a prompt that a store keeps: several of its blocks, which have up to 256 tokens."""
_STORING_S = 1.0
"""Time for a worker to store the blocks of a prompt after its answer."""

Examined = tuple[WorkerConfig, WorkerReport, WorkerFacts]


async def examine_handover(config: Config, reports: Sequence[WorkerReport], *, requests: bool) -> list[str]:
    """Return warnings about the workers with a role. With `requests`, send one prompt to each prefill worker.

    Its blocks stay there until their lease ends, because nothing reads them.
    """
    if config.handover.connector is None:
        return []
    usable = [
        (worker, report, report.facts)
        for worker, report in zip(config.workers, reports, strict=True)
        if report.facts is not None and report.problem is None
    ]
    name = config.handover.connector
    prefill = [one for one in usable if prefills(one[0].role, one[0].labels, name)]
    decode = [one for one in usable if receives(one[0].role, one[0].labels, name)]
    found = [*_missing_roles(config, prefill, decode), *_unlike(prefill, decode)]
    sides = {worker.url: (worker, report, facts) for worker, report, facts in (*prefill, *decode)}
    for worker, report, facts in sides.values():
        found += _misconfigured(config, CONNECTORS[config.handover.connector], worker, report, facts)
    if requests:
        connector = CONNECTORS[config.handover.connector]
        for one in prefill:
            found += await _tried(config, connector, one, [other for other in decode if other[0] is not one[0]])
    return found


def _missing_roles(config: Config, prefill: Sequence[Examined], decode: Sequence[Examined]) -> Iterator[str]:
    for role, workers in ((PREFILL, prefill), (DECODE, decode)):
        if config.workers and not workers and not config.discovery.sources:
            why = f"no worker that can be reached has the role {role}, or the label kv_connector"
            yield f"handover.connector is set, and {why}: no KV cache is handed over"


def _unlike(prefill: Sequence[Examined], decode: Sequence[Examined]) -> Iterator[str]:
    """Yield what keeps a prefill worker and a decode worker of one model from being a pair."""
    for (one, sender, sent), (other, receiver, got) in product(prefill, decode):
        if one is other:
            continue
        roots = {card.id: card.root for card in got.models}
        common = [card for card in sent.models if card.id in roots]
        facts: list[tuple[str, object, object]] = [("vLLM", sent.version, got.version)] if common else []
        facts += [(f"the path of {card.id}", card.root, roots[card.id]) for card in common]
        if common:
            facts.append((f"the label {FORMAT}", one.labels.get(FORMAT), other.labels.get(FORMAT)))
        if common and sent.caches and got.caches:
            facts.append(("the block size", _block_tokens(sent), _block_tokens(got)))
        both = zip(_REPORTED, kv_report(sent), kv_report(got), strict=True) if common else ()
        facts += [(what, here, there) for what, here, there in both if here is not None and there is not None]
        for what, here, there in facts:
            if here != there:
                yield f"{sender.id} and {receiver.id} are no pair: {what} is {here} there and {there} here"


def _misconfigured(
    config: Config, connector: Connector, worker: WorkerConfig, report: WorkerReport, facts: WorkerFacts
) -> Iterator[str]:
    """Yield what a worker's own configuration says against it, if vLLM shows that."""
    known = facts.connector
    if known is None:
        return
    if known.name not in (*connector.vllm_names, _SEVERAL):
        flag = _flag(connector, receives=worker.role == DECODE)
        yield f"{report.id} has the connector {known.name or 'none'}; start vLLM with {flag}"
        return
    if known.load_failure_policy == "recompute":
        why = "a prompt whose load fails is computed again there, and only vLLM's metrics show it"
        yield f'{report.id} has kv_load_failure_policy "recompute": {why}; "fail" lets the gateway choose'
    if known.bidirectional:
        why = "the blocks of each handed-over answer stay for decoder_kv_blocks_ttl, and nothing reads them"
        yield f"{report.id} has bidirectional_kv_xfer: {why}; leave it out"
    lease_s = connector.lease_s if known.lease_s is None else known.lease_s
    if lease_s is not None and lease_s < config.handover.lease_s:
        fix = f"set handover.lease_s to {lease_s:g}"
        yield f"{report.id} keeps blocks for {lease_s:g} s, less than handover.lease_s; {fix}"
    local = is_loopback(parse_endpoint(worker.url).host)
    if (
        connector.name in ("nixl_pull", "nixl_push")
        and known.side_host is not None
        and is_loopback(known.side_host)
        and not local
    ):
        yield f"{report.id} has its side channel on {known.side_host}; {_SIDE_CHANNEL_FIX}"


def _block_tokens(facts: WorkerFacts) -> int:
    cache = next(iter(facts.caches.values()))
    return cache.hash_block_size or cache.block_size


async def _tried(config: Config, connector: Connector, one: Examined, decode: Sequence[Examined]) -> list[str]:
    """Ask a prefill worker to hand a short prompt over, and return what is wrong with its answer."""
    worker, report, facts = one
    endpoint = parse_endpoint(worker.url)
    if connector.facts_from is FactSource.BOOTSTRAP:
        return await _asked(connector, worker, report.id, endpoint.host)
    receiver = parse_endpoint(decode[0][0].url).host if decode else endpoint.host
    legs = Legs(
        transfer_id=f"warmroute-check-{secrets.token_hex(8)}",
        prefill=connector.peer(endpoint.host, None, worker.labels),
        decode=HandoverPeer(host=receiver),
    )
    stores = not connector.marks_prefill
    prompt = " ".join(secrets.token_hex(3) for _ in range(_STORED_WORDS)) if stores else _PROMPT
    members = split(msgspec.json.encode({"model": facts.models[0].id, "prompt": prompt}), COMPLETIONS, connector)
    body = prefill_body(members, connector.prefill_params(legs), COMPLETIONS, ends_by_length=connector.ends_by_length)
    async with WorkerClient(worker.api_key, WorkerTls(config.worker_tls).context_for) as client:
        try:
            answer = await client.post_json(endpoint, _PATH, body, timeout_s=_TIMEOUT_S)
            read = COMPLETIONS.read(answer)
            handed, peer = connector.handed_over(read), connector.introduced(legs.prefill, read)
        except ProbeError as error:
            return [f"{report.id} did not try to hand over: {error.reason}"]
        except HandoverError as error:
            return [f"{report.id} hands nothing over: {error}; start vLLM with {_flag(connector)}"]
    if stores and decode:
        return await _not_found(config, connector, report, prompt, decode[0], connector.decode_params(legs, None))
    host = peer.connector_host if peer is not None else (handed or {}).get("remote_host", endpoint.host)
    if misses_side_channel_host(host, legs.prefill, legs.decode):
        fix = _SIDE_CHANNEL_FIX
        return [f"{report.id} names {host} as its side channel, so {endpoint.host} is used instead; {fix}"]
    return []


def _flag(connector: Connector, *, receives: bool = False) -> str:
    extra = "" if connector.extra_config is None else f',"kv_connector_extra_config":{connector.extra_config}'
    name, role = connector.vllm_names[0], connector.kv_roles[receives]
    return f'--kv-transfer-config \'{{"kv_connector":"{name}","kv_role":"{role}"{extra}}}\''


async def _not_found(
    config: Config,
    connector: Connector,
    sender: WorkerReport,
    prompt: str,
    receiving: Examined,
    params: TransferParams | None,
) -> list[str]:
    """Ask a decode worker for a prompt that the prefill worker has stored, and return what is wrong if it has none."""
    worker, report, facts = receiving
    await asyncio.sleep(_STORING_S)
    members = {"model": facts.models[0].id, "prompt": prompt, "max_tokens": 1}
    body = msgspec.json.encode(members if params is None else members | {"kv_transfer_params": params})
    async with WorkerClient(worker.api_key, WorkerTls(config.worker_tls).context_for) as client:
        try:
            answer = COMPLETIONS.read(
                await client.post_json(parse_endpoint(worker.url), _PATH, body, timeout_s=_TIMEOUT_S)
            )
        except (ProbeError, HandoverError) as error:
            return [f"{report.id} did not try to receive: {error}"]
    if answer.cached_tokens is None:
        fix = "start vLLM with --enable-prompt-tokens-details"
        return [f"{report.id} does not report cached tokens, so nothing shows whether it receives any; {fix}"]
    if answer.cached_tokens:
        return []
    shared = "one store" if params is None else "side channels that they reach"
    fix = f"start both vLLMs with {_flag(connector)} and {shared}"
    return [f"{report.id} found nothing of a prompt that {sender.id} has computed; {fix}"]


async def _asked(connector: Connector, worker: WorkerConfig, worker_id: str, host: str) -> list[str]:
    """Ask the bootstrap server of a prefill worker, and return what is wrong with its answer."""
    flag = _flag(connector)
    try:
        server = bootstrap_of(host, worker.labels.get(BOOTSTRAP_PORT_LABEL))
        async with WorkerClient() as client:
            read_engine_ids(await client.get(server, BOOTSTRAP_PATH, _TIMEOUT_S))
    except (ProbeError, HandoverError) as error:
        fix = f"start vLLM with {flag}, and give its VLLM_MOONCAKE_BOOTSTRAP_PORT in the label {BOOTSTRAP_PORT_LABEL}"
        return [f"{worker_id} hands nothing over: {error}; {fix}"]
    return []
