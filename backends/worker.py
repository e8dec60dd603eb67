"""Identity and reported facts of a worker endpoint, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443}
_EXAMPLE = "http://HOST:PORT or https://HOST:PORT"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a worker. `base_path` is "" or starts with a slash, without a slash at its end.

    It precedes every path sent to the worker, for example for a proxy in front of it.
    """

    scheme: str
    host: str
    port: int
    base_path: str = ""
    host_header: str | None = ""
    """The Host that requests carry: "" is that of the address, None the client's."""

    @property
    def sent_host(self) -> str:
        """Return the Host of requests that no client sent. The scheme's own port is left out, as in browsers."""
        if self.host_header:
            return self.host_header
        return self.authority.removesuffix(f":{_PORTS.get(self.scheme)}")

    @property
    def tls_name(self) -> str:
        return urlsplit(f"//{self.host_header}").hostname or self.host if self.host_header else self.host

    @property
    def authority(self) -> str:
        """Return ``host:port``, IPv6 hosts in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base_path}"


@lru_cache(maxsize=8_192)
def parse_endpoint(url: str) -> Endpoint:
    """Read a worker's base URL. ``host:port`` alone means http. With a scheme and without a port it is the scheme's.

    Raises:
        ValueError: the message names the mistake and, after a semicolon, the fix.
    """
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    if "@" in text:
        raise ValueError(f"a worker's URL carries a user or a password; write {_EXAMPLE}")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL ({error}); write {_EXAMPLE}") from None
    if problem := _problem(parts, text):
        raise ValueError(f"{url!r} {problem}; write {_EXAMPLE}")
    if port is None and "://" not in url:
        raise ValueError(f"{url!r} has no port; write http://{host}:8000, vLLM's own, or {_EXAMPLE}")
    base, v1, rest = (parts.path.rstrip("/") + "/").partition("/v1/")
    if v1:
        raise ValueError(f"{url!r} is the address of the API, not of the worker; drop {(v1 + rest).rstrip('/')}")
    return Endpoint(parts.scheme, host or "", port if port is not None else _PORTS[parts.scheme], base.rstrip("/"))


def _problem(parts: SplitResult, text: str) -> str | None:
    if parts.scheme not in _PORTS:
        return f"has scheme {parts.scheme!r}"
    if not parts.hostname or re.search(r"\s", text):
        return "names no host"
    if parts.query or parts.fragment:
        return "carries more than host, port and path"
    return None if re.fullmatch(r"[!-~]+", text) else "has characters that no URL has"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One card of ``/v1/models``. `parent` is set for a LoRA adapter; `max_model_len` is null for adapters."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class KvEventSource:
    """One rank's KV event publisher, with addresses that can be reached from here."""

    rank: int
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 0
    hwm: int = 100_000
    """Batches queued for one subscriber before it loses some; vLLM's default."""


@dataclass(frozen=True, slots=True)
class RankCache:
    """One rank's KV cache as ``vllm:cache_config_info`` describes it."""

    block_size: int
    num_gpu_blocks: int
    prefix_caching: bool
    hash_block_size: int | None = None
    dtype: str | None = None
    """vLLM's --kv-cache-dtype; auto is that of the model."""
    hash_algorithm: str | None = None
    """vLLM's --prefix-caching-hash-algo."""

    @property
    def capacity_tokens(self) -> int:
        return self.block_size * self.num_gpu_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorFacts:
    """A worker's KV connector as its configuration describes it. `name` is None if it has none.

    `lease_s` is None where vLLM's default counts. `bidirectional`: a decode worker keeps its blocks for the next turn.
    `side_host` and `side_port` are NIXL's, also without NIXL. `dtype` is that of the model.
    """

    name: str | None = None
    role: str | None = None
    load_failure_policy: str | None = None
    lease_s: float | None = None
    bidirectional: bool = False
    dtype: str | None = None
    side_host: str | None = None
    side_port: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a probe learned about one endpoint. Fields that the worker did not report are None or empty."""

    version: str | None = None
    models: tuple[ServedModel, ...] = ()
    caches: dict[int, RankCache] = field(default_factory=dict)
    event_sources: tuple[KvEventSource, ...] = ()
    sleeping: bool = False
    connector: ConnectorFacts | None = None
    """Only with vLLM's development mode."""
    notes: tuple[str, ...] = ()
    """Facts that the worker did not report, and how to change that, in words for an operator."""
    engines: tuple[int, ...] = ()
    """The worker's own numbers of its ranks, which count from 0 within the endpoint."""

    @property
    def ranks(self) -> int:
        """Return the number of data-parallel ranks behind the endpoint, at least one."""
        return max(1, len(self.caches), len(self.event_sources))


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One rank's gauges and counters from ``/metrics``; counters are cumulative, of tokens or preemptions."""

    rank: int
    running: int
    waiting: int
    kv_usage: float
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    prompt_tokens: int | None = None
