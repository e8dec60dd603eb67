"""How long a prompt waits for space in a worker's KV cache.

The blocks of a running request cannot be evicted (`router.placement.load.running`). In vLLM a prompt waits until blocks
are free, and all later prompts wait behind it, first come, first served. That wait lasts until answers end: seconds,
compared with tenths of a second for a prefill.
"""

from __future__ import annotations


def kv_wait_s(prompt_tokens: int, held_tokens: int, requests: int, capacity_tokens: int, remaining_s: float) -> float:
    """Return the KV wait of a prompt in seconds.

    `requests` on the worker hold `held_tokens` and run `remaining_s` longer on average. The estimate frees the held
    space evenly over that time, but not before the first request ends. Requests that wait for space are included,
    since a later prompt waits behind them. But at most the capacity can be in use, and become free, at a time.
    """
    excess = held_tokens + prompt_tokens - capacity_tokens
    if excess <= 0 or held_tokens <= 0 or not capacity_tokens or not requests:
        return 0.0
    return remaining_s * max(1.0 / requests, excess / min(held_tokens, capacity_tokens))
