from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class MigrationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A route's migration. `limit` is how often one answer may go on elsewhere, 0 for off. A stream with more than
    `max_tokens` of prompt and answer is not kept. `prefills_per_worker` limits how many answers wait for their first
    token on each ready worker. Answers of a worker that drains move after `drain_after_s`; None: they run to their end
    there."""

    limit: Annotated[int, Meta(ge=0, le=8)] = 1
    max_tokens: Annotated[int, Meta(ge=1, le=1_048_576)] = 131_072
    prefills_per_worker: Annotated[int, Meta(ge=1, le=1_024)] = 4
    drain_after_s: Annotated[float, Meta(ge=0)] | None = None
