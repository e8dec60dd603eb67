"""Load and learned speeds of all candidates as columns, for fleets too large for one object per candidate.

A row belongs to a slot (`Candidate.slot`). It holds copies of what `WorkerLoad` knows. A change of a worker's load only
notes its slot, and the row is written before the next decision, once for any number of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.records import UTILISATION_CAP
from policies.view import Column, Columns, Roster
from router.placement.fleet.endpoints import Candidate
from router.placement.learning.decode_step_time import Output
from router.placement.learning.speed import PRIOR_TOKEN_S, Speed
from router.placement.learning.utilisation import WARM_UP_S, WINDOW_S
from router.residency.slot_groups import Matches, Slots

STALE_S = 60.0
"""A fit without an observation for this long is replaced by the common one until the next observation. Otherwise a
worker that is avoided because it was slow would never get the request that shows its recovery. So it gets one a
minute."""

(
    QUEUED_REQUESTS,
    QUEUED_TOKENS,
    QUEUED_ATTENTION,
    RUNNING_REQUESTS,
    KV_TOKENS,
    DECODE_TOKENS,
    HEAD_SINCE_S,
    FREED_S,
    SHARED_TOKENS,
    IDLE_TOKENS,
    IDLE_UNTIL_S,
    WORK_TOKENS,
    WORK_ATTENTION,
    WORK_AT_S,
    WORK_SINCE_S,
    UNRESERVED_REQUESTS,
    UNRESERVED_WAITING,
    UNRESERVED_KV_TOKENS,
    UNRESERVED_AT_S,
    UNRESERVED_INTERVAL_S,
    MEAN_UNCACHED_TOKENS,
    STEP_S,
    TESTED_S,
    TOKEN_S,
    FIXED_S,
    ATTENTION_S,
    DECODE_S,
    RELATIVE_ERROR,
    TOKEN_ERROR_S,
    REACH_TOKENS,
) = range(30)
FIELDS = 30
LEARNED = 8
"""Coefficients of a speed, and the growth of a decode step."""
NO_SPEED = (nan,) * 7
_SPEED = slice(TOKEN_S, FIELDS)


class Rows(NamedTuple):
    """The rows of a tuple of candidates. `selector` picks them from the table: a slice if they are neighbours."""

    candidates: Sequence[Candidate]
    roster: Roster
    slots: Slots
    selector: slice | Slots
    capacity_tokens: Column


class Demand(NamedTuple):
    """What a request asks for: its prompt, and what `Output` expects of its answer.

    `remaining_s` is the mean time that running answers still take.
    """

    prompt_tokens: int
    now_s: float
    overlap_tokens: float
    held_tokens: float
    remaining_s: float

    @classmethod
    def of(cls, prompt_tokens: int, now_s: float, output: Output, remaining_s: float) -> Demand:
        return cls(prompt_tokens, now_s, output.overlap_tokens(), output.held_tokens(prompt_tokens), remaining_s)


class FleetTable:
    """One column per fact, one row per slot."""

    def __init__(self) -> None:
        self._cells: NDArray[np.float64] = np.zeros((FIELDS, 64))
        self._learned: NDArray[np.float64] = np.full((LEARNED, 64), nan)
        self._rows: Rows | None = None

    def write(self, slot: int, row: Sequence[float]) -> None:
        """Write the row of a slot: the values of all fields, in their order."""
        if slot >= self._cells.shape[1]:
            more = np.zeros((FIELDS, max(slot + 1, 2 * self._cells.shape[1])))
            more[:, : self._cells.shape[1]] = self._cells
            self._cells = more
        self._cells[:, slot] = row

    def learn(self, slot: int, speed: Speed | None, step_s: float | None) -> None:
        """Note the speed and the growth of a decode step that a worker has learned itself, for the medians."""
        if slot >= self._learned.shape[1]:
            more = np.full((LEARNED, max(slot + 1, 2 * self._learned.shape[1])), nan)
            more[:, : self._learned.shape[1]] = self._learned
            self._learned = more
        self._learned[:, slot] = (
            *(NO_SPEED if speed is None else speed.coefficients()),
            nan if step_s is None else step_s,
        )

    def common_speed(self, slots: Slots) -> Speed | None:
        """Return the median of the speeds that the workers of `slots` have learned (`median_speed`)."""
        learned = self._learned[:, slots]
        learned = learned[:, ~np.isnan(learned[0])]
        token_s, fixed_s, attention_s, decode_s, relative_error, token_error_s, reach_tokens, _ = learned
        if not len(token_s):
            return None
        return Speed(
            _middle(token_s),
            _middle(fixed_s),
            _middle(attention_s[attention_s > 0.0]),
            _middle(decode_s[decode_s > 0.0]),
            float(relative_error.max()),
            float(token_error_s.max()),
            float(reach_tokens.min()),
        )

    def common_step_s(self, slots: Slots) -> float | None:
        """Return the median growth of a decode step per context token; None if no worker has learned it."""
        steps_s = self._learned[-1, slots]
        steps_s = steps_s[~np.isnan(steps_s)]
        return _middle(steps_s) if len(steps_s) else None

    def expired(self, now_s: float) -> list[int]:
        """Return the slots whose idle context has changed by itself."""
        until_s = self._cells[IDLE_UNTIL_S]
        found: list[int] = np.flatnonzero((until_s <= now_s) & (until_s > 0.0)).tolist()
        return found

    def rows(self, candidates: Sequence[Candidate]) -> Rows:
        if self._rows is None or self._rows.candidates is not candidates:
            slots = np.array([candidate.slot for candidate in candidates], np.int64)
            first, last = int(slots[0]), int(slots[-1])
            neighbours = last - first == len(slots) - 1 and bool((np.diff(slots) == 1).all())
            self._rows = Rows(
                candidates,
                roster_of(candidates),
                slots,
                slice(first, last + 1) if neighbours else slots,
                np.array([candidate.capacity_tokens for candidate in candidates], np.float64),
            )
        return self._rows

    def columns(
        self,
        rows: Rows,
        matches: Matches,
        demand: Demand,
        common: Speed | None,
        common_step_s: float | None,
        lost_tokens: Callable[[int, int], int],
        others: NDArray[np.float64] | None = None,
    ) -> Columns:
        """Return the facts of `WorkerView` for each of the rows, in seconds.

        `common` is the speed of workers that have not learned their own; None while none has. `lost_tokens` returns,
        for a place and its cached tokens, the idle tokens of this prompt that are no longer cached. `others` are the
        rows of other processes (`SharedLedger.other_processes_of`).
        """
        cells = self._cells[:, rows.selector]
        held_share = _held_share(cells)
        if others is not None and len(others):
            cells = _with_others(cells, others)
        now_s, prompt_tokens, capacity_tokens = demand.now_s, demand.prompt_tokens, rows.capacity_tokens
        running, kv_tokens = cells[RUNNING_REQUESTS], cells[KV_TOKENS]
        queued_requests, queued_tokens, all_running, held_tokens = _load(cells, held_share, now_s)
        cached_tokens = matches.tokens
        uncached_tokens = prompt_tokens - cached_tokens
        queue_wait_s, prefill_s, utilisation, error_s = (
            _prior_times(queued_tokens, uncached_tokens)
            if common is None
            else _times(cells, now_s, common, queued_tokens, cached_tokens, uncached_tokens)
        )
        own_step_s = cells[STEP_S]
        step_s = np.where(np.isnan(own_step_s), common_step_s or 0.0, own_step_s)
        return Columns(
            {
                "cached_tokens": cached_tokens,
                "uncached_tokens": uncached_tokens,
                "queued_tokens": queued_tokens,
                "running_requests": all_running,
                "kv_tokens": held_tokens,
                "kv_capacity_tokens": capacity_tokens,
                "queue_wait_s": queue_wait_s,
                "prefill_s": prefill_s,
                "utilisation": utilisation,
                "error_s": error_s,
                "queued_requests": queued_requests,
                "decode_externality_s": step_s * demand.overlap_tokens * (kv_tokens + running * demand.held_tokens),
                "kv_wait_s": _kv_wait_s(demand, held_tokens, running, capacity_tokens),
                "idle_tokens": _idle_tokens(
                    cells[IDLE_TOKENS], capacity_tokens - held_tokens - uncached_tokens, cached_tokens, lost_tokens
                ),
            },
            matches.residency,
            common is not None,
            matches.by_tier,
        )


def roster_of(candidates: Sequence[Candidate]) -> Roster:
    return Roster(
        tuple([candidate.id for candidate in candidates]),
        [candidate.endpoint.labels for candidate in candidates],
        [candidate.endpoint.weight for candidate in candidates],
    )


def _middle(values: Column) -> float:
    """Return the median; of two middle values the lower. 0 if there are no values."""
    if not len(values):
        return 0.0
    middle = (len(values) - 1) // 2
    return float(np.partition(values, middle)[middle])


def _held_share(cells: NDArray[np.float64]) -> Column | None:
    """Return the size of each context with shared context counted once, as a fraction; None if nothing is shared."""
    shared_tokens, kv_tokens = cells[SHARED_TOKENS], cells[KV_TOKENS]
    if not shared_tokens.any():
        return None
    share = np.zeros_like(kv_tokens)
    np.divide(shared_tokens, kv_tokens, out=share, where=kv_tokens > 0.0)
    held_share: Column = 1.0 - share
    return held_share


def _with_others(cells: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a copy of the cells with the load of other processes (`shared_load.combined`, `Work.plus`)."""
    merged = cells.copy()
    queued, head_since_s, freed_s = others[:, QUEUED_REQUESTS], others[:, HEAD_SINCE_S], others[:, FREED_S]
    merged[: DECODE_TOKENS + 1] += others[:, : DECODE_TOKENS + 1].sum(axis=0)
    waiting = queued != 0.0
    began_s = np.where(waiting, head_since_s, np.inf).min(axis=0)
    began_s = np.where(waiting.any(axis=0), began_s, 0.0)
    own_queue, own_since_s = cells[QUEUED_REQUESTS] > 0.0, cells[HEAD_SINCE_S]
    both_s = np.where(waiting.any(axis=0), np.minimum(began_s, own_since_s), own_since_s)
    began_s = np.where(own_queue, both_s, began_s)
    merged[FREED_S] = np.maximum(cells[FREED_S], freed_s.max(axis=0))
    merged[HEAD_SINCE_S] = np.maximum(began_s, merged[FREED_S])
    work = np.concatenate([cells[np.newaxis, WORK_TOKENS : WORK_SINCE_S + 1], others[:, FREED_S + 1 :]])
    known = (work[:, 2] != 0.0) & np.isfinite(work[:, 2])
    at_s = np.where(known, work[:, 2], -np.inf).max(axis=0)
    some = known.any(axis=0)
    kept = np.where(known, np.exp(np.where(known, work[:, 2] - np.where(some, at_s, 0.0), 0.0) / WINDOW_S), 0.0)
    merged[WORK_TOKENS] = (work[:, 0] * kept).sum(axis=0)
    merged[WORK_ATTENTION] = (work[:, 1] * kept).sum(axis=0)
    merged[WORK_AT_S] = at_s
    merged[WORK_SINCE_S] = np.where(some, np.where(known, work[:, 3], np.inf).min(axis=0), -np.inf)
    return merged


def _load(cells: NDArray[np.float64], held_share: Column | None, now_s: float) -> tuple[Column, Column, Column, Column]:
    """Return queued requests, queued tokens, running requests and held tokens, with those from elsewhere."""
    queued_requests, queued_tokens = cells[QUEUED_REQUESTS].copy(), cells[QUEUED_TOKENS].copy()
    running, held_tokens = cells[RUNNING_REQUESTS].copy(), cells[KV_TOKENS].copy()
    if held_share is not None:
        held_tokens = np.rint(held_tokens * held_share)
    if cells[UNRESERVED_REQUESTS : UNRESERVED_KV_TOKENS + 1].any():
        weight, waiting = _unreserved_weight(cells, now_s), cells[UNRESERVED_WAITING]
        queued_tokens += np.rint(waiting * cells[MEAN_UNCACHED_TOKENS] * weight)
        weight = np.where((cells[UNRESERVED_REQUESTS] > 0.0) | (cells[UNRESERVED_KV_TOKENS] > 0.0), weight, 0.0)
        running += np.rint(weight * cells[UNRESERVED_REQUESTS])
        held_tokens += np.rint(weight * cells[UNRESERVED_KV_TOKENS])
        queued_requests += np.rint(weight * waiting)
    return queued_requests, queued_tokens, running, held_tokens


def _unreserved_weight(cells: NDArray[np.float64], now_s: float) -> Column:
    interval_s = cells[UNRESERVED_INTERVAL_S]
    known = interval_s > 0.0
    missed = np.zeros_like(interval_s)
    np.divide(now_s - cells[UNRESERVED_AT_S], interval_s, out=missed, where=known)
    weight: Column = np.where(known, 0.5 ** np.maximum(missed - 1.0, 0.0), 0.0)
    return weight


def _prior_times(queued_tokens: Column, uncached_tokens: Column) -> tuple[Column, Column, Column, Column]:
    """Return queue wait, prefill, utilisation and error."""
    unknown = np.zeros_like(queued_tokens)
    return PRIOR_TOKEN_S * queued_tokens, PRIOR_TOKEN_S * uncached_tokens, unknown, unknown


def _times(
    cells: NDArray[np.float64],
    now_s: float,
    common: Speed,
    queued_tokens: Column,
    cached_tokens: Column,
    uncached_tokens: Column,
) -> tuple[Column, Column, Column, Column]:
    token_s, fixed_s, attention_s, decode_s, relative_error, token_error_s, reach_tokens = _speeds(cells, now_s, common)
    queue_wait_s = _queue_wait_s(
        fixed_s + decode_s * cells[DECODE_TOKENS],
        token_s * queued_tokens + attention_s * cells[QUEUED_ATTENTION],
        cells[QUEUED_REQUESTS],
        now_s - cells[HEAD_SINCE_S],
    )
    prefill_s = token_s * uncached_tokens + attention_s * (uncached_tokens * (cached_tokens + 0.5 * uncached_tokens))
    beyond_tokens = cells[QUEUED_TOKENS] + uncached_tokens - reach_tokens
    error_s = relative_error * (queue_wait_s + prefill_s) + token_error_s * np.maximum(beyond_tokens, 0.0)
    return queue_wait_s, prefill_s, _utilisation(token_s, attention_s, cells, now_s), error_s


def _speeds(cells: NDArray[np.float64], now_s: float, common: Speed) -> Sequence[Column]:
    """Return the seven coefficients of the speeds to use: the worker's own one while it is tested, else the common."""
    own = cells[_SPEED]
    fresh = cells[TESTED_S] >= now_s - STALE_S
    if fresh.all():
        return list(own)
    return list(np.where(fresh, own, np.array(common.coefficients())[:, np.newaxis]))


def _queue_wait_s(fixed_s: Column, queued_s: Column, queued_requests: Column, elapsed_s: Column) -> Column:
    total_s = fixed_s + queued_s
    left_s = total_s - elapsed_s
    waits_s = fixed_s + np.where(left_s >= 0.0, np.minimum(queued_s, left_s), -left_s)
    queue_wait_s: Column = np.where(queued_requests != 0.0, waits_s, total_s)
    return queue_wait_s


def _utilisation(token_s: Column, attention_s: Column, cells: NDArray[np.float64], now_s: float) -> Column:
    work_s = token_s * cells[WORK_TOKENS] + attention_s * cells[WORK_ATTENTION]
    work_s *= np.exp((cells[WORK_AT_S] - now_s) / WINDOW_S)
    work_s /= -WINDOW_S * np.expm1((cells[WORK_SINCE_S] - WARM_UP_S - now_s) / WINDOW_S)
    share: Column = np.minimum(work_s, UTILISATION_CAP)
    return share


def _kv_wait_s(demand: Demand, held_tokens: Column, running: Column, capacity_tokens: Column) -> Column:
    excess = held_tokens + demand.prompt_tokens - capacity_tokens
    wait_s = np.zeros_like(held_tokens)
    full = np.flatnonzero((excess > 0.0) & (held_tokens > 0.0) & (capacity_tokens > 0.0) & (running > 0.0))
    if len(full):
        freed = np.minimum(held_tokens[full], capacity_tokens[full])
        wait_s[full] = demand.remaining_s * np.maximum(1.0 / running[full], excess[full] / freed)
    return wait_s


def _idle_tokens(
    idle_tokens: Column, free_tokens: Column, cached_tokens: Column, lost_tokens: Callable[[int, int], int]
) -> Column:
    """Return the idle context of each worker, without what this prompt has lost of it where space is short."""
    found = idle_tokens.copy()
    for place in np.flatnonzero((idle_tokens > free_tokens) & (idle_tokens > 0.0)).tolist():
        lost = lost_tokens(place, int(cached_tokens[place]))
        found[place] = max(0, int(idle_tokens[place]) - max(0, lost))
    return found
