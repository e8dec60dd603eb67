"""What an operator may ask of a vLLM server beside requests: pause, resume, a cache reset, LoRA adapters.

Sources, vLLM 0.33: ``entrypoints/rl/online`` (/pause, /resume), ``entrypoints/serve/dev/cache`` (/reset_prefix_cache),
``entrypoints/serve/lora``. The first two need VLLM_SERVER_DEV_MODE=1, the last VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from backends.foreign_json import read_json
from backends.vllm.control import RefusedError, WorkerClient
from backends.worker import Endpoint

OperationName = Literal["pause", "resume", "reset-prefix-cache", "load-lora", "unload-lora"]
MAX_REASON_CHARACTERS = 300
_LIMITS_S: dict[OperationName, float] = {"load-lora": 120.0, "unload-lora": 30.0}
_LIMIT_S = 15.0
ERROR_BYTES = 4_096
_PAUSE_MARGIN_S = 5.0


class WorkerOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation. `lora_name` and `lora_path` are for adapters; the path is one on the worker's host.

    A pause waits up to `wait_s` for the requests that run on the worker.
    """

    operation: OperationName
    lora_name: str = ""
    lora_path: str = ""
    wait_s: int = 60

    @property
    def limit_s(self) -> float:
        if self.operation == "pause":
            return self.wait_s + _PAUSE_MARGIN_S
        return _LIMITS_S.get(self.operation, _LIMIT_S)


async def operate(client: WorkerClient, endpoint: Endpoint, wanted: WorkerOperation) -> None:
    """Carry out an operation.

    A pause is ``mode=wait``: running requests end first. It keeps the cache.

    Raises:
        RefusedError: the server answered, and did not do it.
        ProbeError: there was no answer in time, so it may or may not have been done.
    """
    path, body = _request(wanted)
    try:
        answer = await client.post_json(endpoint, path, body, timeout_s=wanted.limit_s, error_bytes=ERROR_BYTES)
    except RefusedError as error:
        raise RefusedError(_why(error, wanted), error.status) from None
    if wanted.operation == "reset-prefix-cache" and not _succeeded(answer):
        raise RefusedError("the cache is in use by running requests; drain the worker first, or ask again", 409)


def _request(wanted: WorkerOperation) -> tuple[str, bytes]:
    match wanted.operation:
        case "pause":
            return "/pause?mode=wait&clear_cache=false", b""
        case "resume":
            return "/resume", b""
        case "reset-prefix-cache":
            return "/reset_prefix_cache", b""
        case "load-lora":
            adapter = {"lora_name": wanted.lora_name, "lora_path": wanted.lora_path}
            return "/v1/load_lora_adapter", msgspec.json.encode(adapter)
        case "unload-lora":
            return "/v1/unload_lora_adapter", msgspec.json.encode({"lora_name": wanted.lora_name})


def _succeeded(answer: bytes) -> bool:
    """Return whether a reset took place. Older releases of vLLM answer without a body."""
    try:
        return read_json(answer, _Reset).success if answer else True
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


class _Reset(msgspec.Struct):
    success: bool = True


def _why(error: RefusedError, wanted: WorkerOperation) -> str:
    said = _message(error.body)
    if error.status == 404 and said in ("", "Not Found"):
        lora = wanted.operation in ("load-lora", "unload-lora")
        setting = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" if lora else "VLLM_SERVER_DEV_MODE=1"
        return f"the worker does not offer it; start vLLM with {setting} in its environment"
    return f"{error.reason}: {said}" if said else error.reason


def _message(body: bytes) -> str:
    try:
        document = read_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    for key in ("error", "message", "detail"):
        if isinstance(document, dict) and key in document:
            document = document[key]
    if isinstance(document, dict):
        document = document.get("message", "")
    return document[:MAX_REASON_CHARACTERS] if isinstance(document, str) else ""
