"""vLLM's histogram bounds (vllm/v1/metrics/loggers.py), upper ends in ascending order.

The gateway and the simulated workers use them too, so that quantiles can be compared, and dashboards made for vLLM
work.
"""

from __future__ import annotations

TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
ITL_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
DURATION_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


def length_bounds(max_tokens: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... up to `max_tokens`, the bounds of prompt and answer lengths."""
    powers = range(len(str(max_tokens)))
    return tuple(float(m * 10**p) for p in powers for m in (1, 2, 5) if m * 10**p <= max_tokens)
