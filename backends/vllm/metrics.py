"""The few lines of vLLM's ``/metrics`` that a router needs.

A page has about a thousand lines, nearly all of them histogram buckets, and is read every second from every worker. One
regular expression picks out the wanted samples; the rest is never split into lines. A page is read in steps of at most
about 2 ms, whatever it contains. Both generations of names are read: up to 0.11 the cache gauges and counters had a
``gpu_`` prefix.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace

from backends.worker import LoadReport, RankCache

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
USAGE = "vllm:kv_cache_usage_perc"
QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"
GENERATED = "vllm:generation_tokens_total"
PROMPTS = "vllm:prompt_tokens_total"
PREEMPTIONS = "vllm:num_preemptions_total"
SLEEP = "vllm:engine_sleep_state"
CACHE = "vllm:cache_config_info"
STARTED = "process_start_time_seconds"

OLDER_NAMES: Mapping[str, str] = {
    USAGE: "vllm:gpu_cache_usage_perc",
    QUERIES: "vllm:gpu_prefix_cache_queries_total",
    HITS: "vllm:gpu_prefix_cache_hits_total",
}
"""Read if the page lacks the newer name; 0.11 has both."""

_NEWER_NAMES = (
    RUNNING, WAITING, USAGE, QUERIES, HITS, GENERATED, PROMPTS, PREEMPTIONS, SLEEP, CACHE, STARTED,
)  # fmt: skip
_NAMES = "|".join((*_NEWER_NAMES, *OLDER_NAMES.values()))
_SAMPLE = re.compile(
    rf'^({_NAMES})(?:\{{((?:[^"}}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\}})?[ \t]++(\S++)',
    re.MULTILINE,
)
_LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]++|\\.)*+)"')
"""Tried at the beginning of a word only, and with possessive quantifiers, as `_SAMPLE`. A worker may send 8 MB of one
word, which would otherwise cost quadratic time, and memory for backtracking."""

_MAX_RANK = 4095
MAX_ENGINES = 512
"""Ranks of one endpoint. Each is a candidate of every decision."""
MAX_SAMPLES = 8_192
"""Wanted samples of one page: 16 for each of 512 ranks."""
STEP_BYTES = 16_384
"""What is read of a page in one step. Longer lines are skipped; vLLM's longest has about 2 kB."""
_LARGEST = 1e18
"""Larger samples are skipped: their sums could overflow."""
MAX_BLOCK_TOKENS = 1 << 24
"""Larger blocks are a mistake: no context is that long."""
MAX_BLOCKS = 1 << 32
"""Largest number of blocks. With both bounds a cache's size in tokens fits in 64 bits."""


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """One read of ``/metrics``.

    `started_s` is the process's start as Unix time (absent with several API server processes). A changed value means
    another process. Ranks count from 0 within the endpoint, even if its engines have other numbers in a larger
    deployment; `engines` has those numbers, by rank.
    """

    caches: Mapping[int, RankCache]
    loads: tuple[LoadReport, ...]
    sleeping: bool
    started_s: float | None
    engines: tuple[int, ...] = ()


class StrangePage(ValueError):
    """The page has more of vLLM's samples than any deployment."""


def parse_metrics(page: str) -> MetricsPage:
    steps = metrics_steps(page.encode())
    while True:
        try:
            next(steps)
        except StopIteration as end:
            read: MetricsPage = end.value
            return read


def metrics_steps(page: bytes) -> Generator[None, None, MetricsPage]:
    """Read caches, loads, sleep state and process start from Prometheus text. Odd lines are skipped.

    Raises:
        StrangePage: more than `MAX_SAMPLES` wanted samples, or more than `MAX_ENGINES` ranks.
    """
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    caches: dict[int, RankCache] = {}
    sleeping = False
    started_s: float | None = None
    left = MAX_SAMPLES
    for text in _pieces(page):
        for name, labels, value in _samples(text):
            left -= 1
            if left < 0:
                raise StrangePage(f"/metrics has more than {MAX_SAMPLES} samples of vLLM's gauges")
            if name == STARTED:
                started_s = value
                continue
            rank = _rank(labels)
            if rank is None:
                continue
            if name == SLEEP:
                sleeping = sleeping or (value > 0 and labels.get("sleep_state", "awake") != "awake")
            elif name == CACHE:
                if cache := _cache(labels):
                    caches[rank] = cache
            else:
                sums[rank][name] += value
        if max(len(sums), len(caches)) > MAX_ENGINES:
            raise StrangePage(f"/metrics has more than {MAX_ENGINES} engines")
        yield
    loads = tuple(_load(rank, sums[rank]) for rank in sorted(sums))
    return _within_the_endpoint(MetricsPage(caches, loads, sleeping, started_s))


def _pieces(page: bytes) -> Iterator[str]:
    """Yield whole lines, together at most `STEP_BYTES`; "" in place of longer lines."""
    start = 0
    while start < len(page):
        end = len(page) if len(page) - start <= STEP_BYTES else page.rfind(b"\n", start, start + STEP_BYTES) + 1
        if end <= start:
            yield ""
            end = page.find(b"\n", start + STEP_BYTES) + 1 or len(page)
        else:
            yield page[start:end].decode("utf-8", "replace")
        start = end


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for match in _SAMPLE.finditer(text):
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if abs(value) <= _LARGEST:  # excludes NaN too
            yield name, dict(_LABEL.findall(labels or "")), value


def _rank(labels: Mapping[str, str]) -> int | None:
    number = _int(labels.get("engine", "0"))
    return number if number is not None and 0 <= number <= _MAX_RANK else None


def _cache(labels: Mapping[str, str]) -> RankCache | None:
    block_size = _count(labels.get("block_size"), MAX_BLOCK_TOKENS)
    num_blocks = _count(labels.get("num_gpu_blocks"), MAX_BLOCKS)
    if block_size is None or num_blocks is None:
        return None
    # With several ranks vLLM 0.33 shows the sum of num_gpu_blocks for each rank; this label is one rank's number.
    own_tokens = _int(labels.get("kv_cache_size_tokens"))
    if own_tokens is not None and own_tokens > 0:
        num_blocks = min(num_blocks, -(-own_tokens // block_size))
    return RankCache(
        block_size=block_size,
        num_gpu_blocks=num_blocks,
        prefix_caching=labels.get("enable_prefix_caching", "True").lower() in ("true", "1"),
        hash_block_size=_count(labels.get("hash_block_size"), MAX_BLOCK_TOKENS),
        dtype=labels.get("cache_dtype"),
        hash_algorithm=labels.get("prefix_caching_hash_algo"),
    )


def _load(rank: int, sums: Mapping[str, float]) -> LoadReport:
    queries, hits = _either(sums, QUERIES), _either(sums, HITS)
    return LoadReport(
        rank=rank,
        running=max(0, int(sums.get(RUNNING, 0))),
        waiting=max(0, int(sums.get(WAITING, 0))),
        kv_usage=min(1.0, max(0.0, _either(sums, USAGE) or 0.0)),
        prefix_queries=int(queries) if queries is not None else None,
        prefix_hits=int(hits) if hits is not None else None,
        generation_tokens=_total(sums, GENERATED),
        preemptions=_total(sums, PREEMPTIONS),
        prompt_tokens=_total(sums, PROMPTS),
    )


def _total(sums: Mapping[str, float], name: str) -> int | None:
    return None if name not in sums else int(sums[name])


def _either(sums: Mapping[str, float], name: str) -> float | None:
    return sums.get(name, sums.get(OLDER_NAMES[name]))


def _within_the_endpoint(page: MetricsPage) -> MetricsPage:
    engines = tuple(sorted(set(page.caches) | {load.rank for load in page.loads}))
    rank = {engine: index for index, engine in enumerate(engines)}
    return replace(
        page,
        engines=engines,
        caches={rank[engine]: cache for engine, cache in page.caches.items()},
        loads=tuple(replace(load, rank=rank[load.rank]) for load in page.loads),
    )


def _count(text: str | None, most: int) -> int | None:
    number = _int(text)
    return number if number is not None and 1 <= number <= most else None


def _int(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
