"""Rows of docs/reference/limits.md: what is read of a worker's bytes, and how much of it.

Whatever reads bytes of a worker has a row here, with a test that `tests/conformance/test_worker_reads.py` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backends.vllm.control import MAX_ANSWER_BYTES, MAX_METRICS_BYTES
from backends.vllm.control import MAX_HEAD_BYTES as MAX_CALL_HEAD_BYTES
from backends.vllm.events import MAX_ODD_EVENTS
from backends.vllm.handover.mooncake import MAX_QUERY_BYTES, MAX_RANKS
from backends.vllm.handover.parameters import MAX_BLOCKS, MAX_TOKEN_IDS
from backends.vllm.handover.prefill_answer import MAX_ANSWER_BYTES as MAX_PREFILL_BYTES
from backends.vllm.metrics import MAX_ENGINES, MAX_SAMPLES, STEP_BYTES
from backends.vllm.operations import ERROR_BYTES as OPERATION_ERROR_BYTES
from backends.vllm.probe import MAX_HEALTH_BYTES, MAX_MODELS, MAX_SOURCES_BYTES
from backends.vllm.server_info import MAX_BYTES as MAX_INFO_BYTES
from backends.vllm.server_info import MAX_CHARACTERS
from router.gateway.flow.attempt.opening import ERROR_BYTES, NOT_FOUND_BYTES
from router.requests.answers.sse import FIRST_EVENT_BYTES
from router.requests.answers.usage import TAIL_BYTES
from router.requests.outgoing import HELD_BYTES
from router.requests.pins import ID_WITHIN_BYTES
from router.residency.exact.block_copies import LOWER_TIER_BLOCKS
from router.tokenization.remote_tokenizer import MAX_ANSWER_BYTES as MAX_TOKENIZE_BYTES
from router.tokenization.remote_tokenizer import STEP_BYTES as IDS_STEP_BYTES
from router.workers.event_sockets import MAX_MESSAGE_BYTES
from router.workers.selftest_rendering import MAX_ANSWER_BYTES as MAX_CHAT_BYTES

HEADS = ("read of a worker", "bytes, at most", "of which", "beyond it")
_FAILED = "the call has failed"
_UNUSABLE = "the probe has failed"


@dataclass(frozen=True, slots=True)
class WorkerRead:
    """One reader: its bound in bytes, what it keeps or decodes of them, and what happens beyond."""

    what: str
    max_bytes: int | str
    of_which: str
    beyond: str


WORKER_READS: tuple[WorkerRead, ...] = (
    WorkerRead("head of an answer to a call of the gateway's own", MAX_CALL_HEAD_BYTES, "all headers", _FAILED),
    WorkerRead("`/health`", MAX_HEALTH_BYTES, "nothing", _UNUSABLE),
    WorkerRead("`/version`", MAX_HEALTH_BYTES, "128 characters", _UNUSABLE),
    WorkerRead("`/v1/models`", MAX_ANSWER_BYTES, f"{MAX_MODELS:,} models", _UNUSABLE),
    WorkerRead(
        "`/metrics`",
        MAX_METRICS_BYTES,
        f"{MAX_SAMPLES:,} samples of {MAX_ENGINES} ranks, in steps of {STEP_BYTES:,} bytes",
        "the read has failed",
    ),
    WorkerRead("`/kv_event_sources`", MAX_SOURCES_BYTES, f"{MAX_ENGINES} ranks", "no events are subscribed to"),
    WorkerRead("`/server_info`", MAX_INFO_BYTES, f"nine values of {MAX_CHARACTERS} characters", _FAILED),
    WorkerRead(
        "`/tokenize` for a prompt",
        MAX_TOKENIZE_BYTES,
        f"ids, in steps of {IDS_STEP_BYTES:,} bytes; 9 bytes for each byte of the prompt, and 65,536",
        "the prompt is placed by its text",
    ),
    WorkerRead("`/tokenize` in a self-test", MAX_CHAT_BYTES, "ids", "the chat is not compared"),
    WorkerRead("completion in a self-test", MAX_ANSWER_BYTES, "its usage", "the self-test is not settled"),
    WorkerRead("answer to an operation", MAX_ANSWER_BYTES, "one flag", "the operation has failed"),
    WorkerRead("error of an operation", OPERATION_ERROR_BYTES, "its message", "the rest is not read"),
    WorkerRead("Mooncake's `/query`", MAX_QUERY_BYTES, f"{MAX_RANKS:,} ranks", "no KV handover"),
    WorkerRead("one message of KV events", MAX_MESSAGE_BYTES, "all events", "the subscription starts again"),
    WorkerRead(
        "events of which some have an unknown form",
        MAX_MESSAGE_BYTES,
        f"{MAX_ODD_EVENTS:,} events",
        "the message counts as lost",
    ),
    WorkerRead(
        "blocks of a slower tier",
        "the message's",
        f"{LOWER_TIER_BLOCKS:,} blocks",
        "the oldest are forgotten",
    ),
    WorkerRead("head of a client's answer", "`limits.max_header_bytes`", "all headers", "the worker has failed"),
    WorkerRead("first event of a stream", FIRST_EVENT_BYTES, "an error in it", "it counts as content"),
    WorkerRead("error before an answer", ERROR_BYTES, "all, to repeat it", "the client gets an error of the gateway"),
    WorkerRead("404 before an answer", NOT_FOUND_BYTES, "the parameter at fault", "it is passed on"),
    WorkerRead("usage of an answer", TAIL_BYTES, "eight numbers", "usage is unknown"),
    WorkerRead("one event with usage, where it is filtered", HELD_BYTES, "whether it has choices", "it is passed on"),
    WorkerRead("id of a stored response", ID_WITHIN_BYTES, "256 characters", "the response is not pinned"),
    WorkerRead(
        "answer of a prefill",
        MAX_PREFILL_BYTES,
        f"{MAX_TOKEN_IDS:,} token ids, {MAX_BLOCKS:,} block ids; 10 bytes for each byte of the request, and 1,048,576",
        "the request is computed on one worker",
    ),
)


def worker_rows() -> Iterator[tuple[str, ...]]:
    """Return one row for each entry of `WORKER_READS`; `HEADS` names the cells."""
    for read in WORKER_READS:
        size = f"{read.max_bytes:,}" if isinstance(read.max_bytes, int) else read.max_bytes
        yield read.what, size, read.of_which, read.beyond
