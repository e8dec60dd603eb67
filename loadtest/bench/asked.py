"""Requests to the stand-in, parsed once per body, because the load repeats a few bodies."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import xxhash

from loadtest.bench import frames
from loadtest.bench.blocks import BLOCK_TOKENS, NUM_BLOCKS, Blocks, Chain

KEPT_BODIES = 4096
CONFIG_LABELS = f'block_size="{BLOCK_TOKENS}",num_gpu_blocks="{NUM_BLOCKS}",enable_prefix_caching="True",engine="0"'
METRICS = f"""vllm:num_requests_running{{engine="0",model_name="{frames.MODEL}"}} 0
vllm:num_requests_waiting{{engine="0",model_name="{frames.MODEL}"}} 0
vllm:kv_cache_usage_perc{{engine="0",model_name="{frames.MODEL}"}} 0
vllm:cache_config_info{{{CONFIG_LABELS}}} 1
""".encode()
CARD = {"id": frames.MODEL, "object": "model", "root": frames.MODEL, "owned_by": "vllm", "created": 1}
NO_EVENTS_USAGE = (600, 592)


class Asked(NamedTuple):
    """A parsed request body: the whole response, or the first bytes of a stream, which adds blocks to `chain`."""

    stream: bool
    max_tokens: int
    answer: bytes
    chain: Chain | None = None


class Prompts:
    """Cache of parsed bodies, and the pages served to GET."""

    def __init__(self, blocks: Blocks | None) -> None:
        self._blocks = blocks
        self._known: dict[tuple[bytes, int], Asked] = {}
        self._pages = {
            b"/v1/models": msgspec.json.encode({"object": "list", "data": [CARD]}),
            b"/version": b'{"version":"0.33.0"}',
            b"/kv_event_sources": msgspec.json.encode(blocks.sources if blocks is not None else {}),
            b"/metrics": METRICS,
        }

    def page(self, url: bytes) -> bytes:
        """Return the whole response to a GET; an unknown path gets that of vLLM's ``/health``."""
        return frames.json_response(self._pages.get(url, b"{}"))

    def read(self, url: bytes, body: bytes) -> Asked:
        """Return the request that `body` contains, and keep its prompt in the cache from then on."""
        key = url, xxhash.xxh3_64_intdigest(body)
        return self._known.get(key) or self._first(url, body, key)

    def _first(self, url: bytes, body: bytes, key: tuple[bytes, int]) -> Asked:
        fields: dict[str, Any] = msgspec.json.decode(body)
        if url == b"/tokenize":
            return Asked(False, 0, self._tokenized(fields))
        stream = fields.get("stream") is True
        first, later, chain = NO_EVENTS_USAGE, NO_EVENTS_USAGE, None
        if self._blocks is not None:
            chain, cached = self._blocks.prompt(fields)
            # The first answer reports the tokens that were cached before it. Repeats of the body find the whole prompt.
            first, later = (chain.tokens, cached), (chain.tokens, chain.reusable_tokens)

        def asked(usage: tuple[int, int]) -> Asked:
            answer = frames.FIRST if stream else frames.answer(*usage, chat=not url.startswith(b"/v1/completions"))
            # A router that rebuilds the body may use the newer name.
            max_tokens = fields.get("max_tokens") or fields.get("max_completion_tokens") or frames.ANSWER_TOKENS
            return Asked(stream, max_tokens, answer, chain)

        if len(self._known) >= KEPT_BODIES:
            self._known.clear()
        self._known[key] = asked(later)
        return asked(first)

    def _tokenized(self, fields: dict[str, Any]) -> bytes:
        if self._blocks is None:
            return frames.NOT_FOUND
        tokens = self._blocks.tokens(fields)
        return frames.json_response(msgspec.json.encode({"count": len(tokens), "tokens": tokens}))
