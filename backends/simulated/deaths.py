"""The ways in which vLLM 0.33 leaves its clients, for tests of what a gateway makes of them.

``POST /death`` (with the setting `deaths`) plans one: at once, or as soon as a stream of chat completions or
completions has its token number `at_token`. With 0, a chat has its role and no token then.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import msgspec

from backends.simulated.generation import Delivery


class WorkerDeath(StrEnum):
    """What clients see; after each, the port refuses connections."""

    RESET = "reset"
    """Connections are reset."""
    END = "end"
    """Connections end in the middle of a body, as after SIGKILL of ``vllm serve``."""
    ERROR = "error"
    """Streams end with an error event and ``[DONE]``, as after the death of the engine. Responses streams are cut."""
    ABORT = "abort"
    """Answers end with the reason "abort", as after most SIGTERMs."""
    SILENCE = "silence"
    """Connections stay open without another byte, as after other SIGTERMs, and after a drain that took too long."""


class DeathBody(msgspec.Struct, frozen=True):
    way: WorkerDeath
    at_token: Annotated[int, msgspec.Meta(ge=0)] | None = None


class PlannedDeath:
    """Lets a stream have its tokens up to the one at which the worker dies. `strike` begins the death."""

    def __init__(self) -> None:
        self.strike: Callable[[WorkerDeath], None] = lambda way: None
        self._plan: DeathBody | None = None

    def plan(self, body: DeathBody) -> None:
        if body.at_token is None:
            self.strike(body.way)
        else:
            self._plan = body

    def spared(self, deliveries: list[Delivery]) -> tuple[list[Delivery], bool]:
        """Return what a client still gets, and whether the worker dies then."""
        plan = self._plan
        if plan is None or plan.at_token is None:
            return deliveries, False
        generation = deliveries[0][0]
        left = plan.at_token - len(generation.token_ids)
        return deliveries[: max(0, left)], len(deliveries) >= left

    def struck(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            self.strike(plan.way)
