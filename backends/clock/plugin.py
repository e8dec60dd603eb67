"""The entry point from which vLLM loads platforms (group ``vllm.platform_plugins``)."""

from __future__ import annotations

import os

from backends.clock.settings import SWITCH

PLATFORM = "backends.clock.platform.ClockPlatform"


def platform() -> str | None:
    """Return the platform's qualified name if ``WARMROUTE_CLOCK=1``, else None, so that a real GPU stays in use."""
    return PLATFORM if os.environ.get(SWITCH) == "1" else None
