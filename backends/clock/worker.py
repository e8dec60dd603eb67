"""The worker that vLLM's engine drives. Loaded by vLLM; not importable without it.

It answers as a GPU worker does, with two differences: no weights, and each step takes the profile's time.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.worker import worker_base

from backends.clock.answers import Answers, read_tokenizer
from backends.clock.batches import Batches, BatchShape
from backends.clock.device import Device
from backends.clock.settings import read_settings
from backends.engine.profile import load_profile
from backends.engine.timing import StepTiming

GIB = 1 << 30


class PendingOutput(AsyncModelRunnerOutput):
    """A step on the device; `get_output` waits for its end."""

    def __init__(self, output: Any, device: Device, end_s: float) -> None:
        self._output = output
        self._device = device
        self._end_s = end_s

    def get_output(self) -> Any:
        self._device.wait(self._end_s)
        return self._output

    def get_kv_connector_output(self) -> Any:
        return self._output.kv_connector_output


class ClockWorker(worker_base.WorkerBase):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("shared_worker_lock", None)
        super().__init__(*args, **kwargs)
        settings = read_settings(os.environ)
        rank = self.parallel_config.data_parallel_rank
        self._settings = settings
        self._profile = load_profile(settings.profile)
        self._timing = StepTiming(
            self._profile, random.Random(f"steps {settings.seed} {rank}"), settings.jitter, settings.speed
        )
        self._device = Device(settings.time_scale, time.monotonic, time.sleep)
        self._batches = Batches()
        self._adapters: set[int] = set()
        self._answers: Answers | None = None
        self._launched: tuple[BatchShape, float, Any] | None = None
        self._seed = settings.seed * 1_000 + rank

    # Start-up.

    def init_device(self) -> None:
        """Read the tokenizer for the answers."""
        tokenizer = read_tokenizer(self.model_config.tokenizer)
        settings = self._settings
        self._answers = Answers(
            tokenizer, self._seed, self._stop_ids(), settings.stop_probability, settings.character_share
        )

    def _stop_ids(self) -> list[int]:
        stop = getattr(self.model_config.hf_text_config, "eos_token_id", None)
        if stop is None:
            return []
        return list(stop) if isinstance(stop, list | tuple) else [int(stop)]

    def load_model(self, **kwargs: Any) -> None: ...

    def get_model(self) -> Any:
        raise NotImplementedError("this worker runs without a model (WARMROUTE_CLOCK=1)")

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """Return full attention in every layer, of the model's own shape."""
        config = self.model_config
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=config.get_num_kv_heads(self.parallel_config),
            head_size=config.get_head_size(),
            dtype=config.dtype,
        )
        return {f"layers.{n}.attn": spec for n in range(config.get_num_layers(self.parallel_config))}

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["NHD"]

    def determine_available_memory(self) -> int:
        """Return the bytes of the modelled KV cache, which decide ``num_gpu_blocks``."""
        if self.cache_config.kv_cache_memory_bytes:
            return int(self.cache_config.kv_cache_memory_bytes)
        if self._settings.kv_gib is not None:
            return int(self._settings.kv_gib * GIB)
        layers = self.get_kv_cache_spec().values()
        blocks = self._profile.kv_tokens // self.cache_config.block_size
        return int(blocks * sum(layer.page_size_bytes for layer in layers))

    def initialize_from_config(self, kv_cache_config: Any) -> None: ...
    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None: ...

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len

    def compile_or_warm_up_model(self) -> Any:
        times = getattr(worker_base, "CompilationTimes", None)
        return times(0.0, 0.0) if times is not None else 0.0

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_kv_connector_handshake_metadata(self) -> None: ...

    # Steps.

    def execute_model(self, scheduler_output: Any) -> Any:
        """Launch a step; `sample_tokens` follows at once, unless nothing was scheduled."""
        step = self._batches.step(scheduler_output)
        moved = _moved(getattr(scheduler_output, "kv_connector_metadata", None))
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT if moved is None else ModelRunnerOutput.with_kv_conn_output_only(moved)
        step_s = self._timing.step_s(step.chunks, step.decodes, step.decode_context_tokens)
        self._launched = step, self._device.launch(step_s), moved
        return None

    def sample_tokens(self, grammar_output: Any) -> Any:
        assert self._launched is not None and self._answers is not None
        step, end_s, moved = self._launched
        self._launched = None
        rows = _grammar_rows(grammar_output)
        tokens = [
            [self._answers.draw(self._batches.known(request_id), rows.get(request_id))]
            if request_id in step.producers
            else []
            for request_id in step.request_ids
        ]
        index = {request_id: position for position, request_id in enumerate(step.request_ids)}
        output = ModelRunnerOutput(
            req_ids=step.request_ids, req_id_to_index=index, sampled_token_ids=tokens, kv_connector_output=moved
        )
        pending = PendingOutput(output, self._device, end_s)
        # A synchronous engine needs the tokens themselves: 0.33 waits for them, 0.23 does not.
        return pending if self.vllm_config.scheduler_config.async_scheduling else pending.get_output()

    def execute_dummy_batch(self) -> None:
        """Run the step of an idle data-parallel rank."""

    def take_draft_token_ids(self) -> None: ...

    # Adapters, sleep and caches: bookkeeping only.

    def add_lora(self, lora_request: Any) -> bool:
        self._adapters.add(lora_request.lora_int_id)
        return True

    def remove_lora(self, lora_id: int) -> bool:
        known = lora_id in self._adapters
        self._adapters.discard(lora_id)
        return known

    def pin_lora(self, lora_id: int) -> bool:
        return lora_id in self._adapters

    def list_loras(self) -> set[int]:
        return set(self._adapters)

    def sleep(self, level: int = 1) -> None: ...
    def wake_up(self, tags: list[str] | None = None) -> None: ...
    def reset_mm_cache(self) -> None: ...
    def reset_encoder_cache(self) -> None: ...
    def profile(self, is_start: bool = True, *args: Any, **kwargs: Any) -> None: ...


def _moved(transfers: Any) -> Any:
    """Return a step's finished transfers as vLLM's scheduler reads them; None without a connector."""
    if transfers is None:
        return None
    return KVConnectorOutput(
        finished_sending=transfers.sent, finished_recving=transfers.received, failed_recving=transfers.failed
    )


def _grammar_rows(grammar_output: Any) -> dict[str, Any]:
    if grammar_output is None:
        return {}
    return dict(zip(grammar_output.structured_output_request_ids, grammar_output.grammar_bitmask, strict=False))
