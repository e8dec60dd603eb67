"""Per-request timestamps of vLLM on a real GPU, as LLMServingSim's bench recorded them.

A recording is ``NAME.meta.json`` beside ``NAME.requests.jsonl.zst``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.workload.errors import TraceError
from loadtest.workload.rows import opened

META = ".meta.json"
REQUESTS = ".requests.jsonl.zst"


class RecordingError(RuntimeError):
    """The recordings cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request. Times are seconds of one clock that starts with the first arrival.

    `scheduled_s` is the start of scheduling of the first step that computes it.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    arrived_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        if self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Recording:
    """One run of one engine; `max_*` are vLLM's flags."""

    model: str
    max_num_batched_tokens: int
    max_num_seqs: int
    requests: tuple[RecordedRequest, ...]


class _Flags(msgspec.Struct):
    data_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int


class _Meta(msgspec.Struct):
    model: str
    engine_kwargs: _Flags


class _Row(msgspec.Struct):
    request_id: str
    input_toks: int
    output_toks: int
    arrival_time: float
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float


def read_recording(meta_path: Path) -> Recording:
    """Read one recording.

    Raises:
        RecordingError: a file is missing or malformed, there is no ``zstd`` command, or several engines shared the
            requests.
    """
    path = meta_path.with_name(meta_path.name.removesuffix(META) + REQUESTS)
    try:
        meta = msgspec.json.decode(meta_path.read_bytes(), type=_Meta)
        with opened(path) as lines:
            rows = msgspec.json.Decoder(_Row).decode_lines(lines.read())
    except (OSError, TraceError, msgspec.DecodeError) as error:
        raise RecordingError(f"{path}: {error}") from error
    if not rows:
        raise RecordingError(f"{path}: no requests")
    flags = meta.engine_kwargs
    if flags.data_parallel_size != 1:
        raise RecordingError(f"{meta_path}: {flags.data_parallel_size} data-parallel ranks; only one can be fitted")
    return Recording(meta.model, flags.max_num_batched_tokens, flags.max_num_seqs, _requests(rows))


def _requests(rows: list[_Row]) -> tuple[RecordedRequest, ...]:
    # Arrivals are wall-clock times at the front end, all other times the engine's monotonic clock. To align them, the
    # fastest transfer from front end to engine is assumed to take no time.
    offset_s = min(row.queued_ts - row.arrival_time for row in rows)
    start_s = min(row.arrival_time for row in rows) + offset_s
    read = [
        RecordedRequest(
            id=row.request_id,
            prompt_tokens=row.input_toks,
            output_tokens=row.output_toks,
            arrived_s=row.arrival_time + offset_s - start_s,
            scheduled_s=row.scheduled_ts - start_s,
            first_token_s=row.first_token_ts - start_s,
            last_token_s=row.last_token_ts - start_s,
        )
        for row in rows
    ]
    return tuple(sorted(read, key=lambda request: request.arrived_s))
