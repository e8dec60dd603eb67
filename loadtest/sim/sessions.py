"""What clients ask, drawn before the run: every router and every view is asked the same.

Answers are drawn in advance too, as token ids, so that a later turn's prompt does not depend on who served the earlier
one. Times do: a turn follows the end of the answer before it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what is asked and what the model will answer.

    It is sent `pause_s` after the call before it ended (the first one at the session's start). A client that
    `leaves_after_s` closes its connection so long after sending, whatever it has got by then.
    """

    prompt_ids: array[int]
    output_ids: array[int]
    pause_s: float = 0.0
    leaves_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Calls of one client, one after the other. `direct` names the worker (by number) that it asks past the gateway."""

    id: str
    start_s: float
    calls: tuple[Call, ...]
    direct: int | None = None
