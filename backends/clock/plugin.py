"""The entry point that vLLM asks for platforms (group ``vllm.platform_plugins``)."""

from __future__ import annotations

import os

from backends.clock.settings import SWITCH

PLATFORM = "backends.clock.platform.ClockPlatform"


def platform() -> str | None:
    """The platform's qualified name where ``WARMROUTE_CLOCK=1``, else None: beside a real GPU nothing changes."""
    return PLATFORM if os.environ.get(SWITCH) == "1" else None
