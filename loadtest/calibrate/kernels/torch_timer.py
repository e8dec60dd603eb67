"""The time of one operation with torch: CUDA events around replays of a graph, or a clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn.attention.bias import causal_lower_right

from backends.engine.profile import Fingerprint
from loadtest.calibrate.kernels.operations import AllReduce, Attention, Elementwise, Gemm, Operation
from loadtest.calibrate.readings import CalibrationError

WARM_UPS = 3
REPEATS = 10
SLOW_MS = 50.0
SLOW_REPEATS = 3
"""Of an operation slower than `SLOW_MS`."""
_FLUSHED = 2
"""Times the size of the L2 cache that is written before each repeat, as weights of many layers come from memory."""


class TorchTimer:
    """Times operations in bf16, on a GPU where torch sees one. On a CPU one core does them; its thread time counts."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        self._device = torch.device("cuda" if self.on_gpu else "cpu")
        if not self.on_gpu:
            torch.set_num_threads(1)
        flushed = _FLUSHED * torch.cuda.get_device_properties(self._device).L2_cache_size if self.on_gpu else 0
        self._flushed = torch.empty(flushed, dtype=torch.int8, device=self._device)

    def fingerprint(self) -> Fingerprint:
        """Return what torch says of the device."""
        if not self.on_gpu:
            return Fingerprint(gpu="CPU core", torch=torch.__version__)
        found = torch.cuda.get_device_properties(self._device)
        return Fingerprint(gpu=found.name, gpu_memory_bytes=found.total_memory, torch=torch.__version__)

    def ms(self, operation: Operation) -> float:
        """Return the median time of the operation alone, without its launch on a GPU.

        Raises:
            CalibrationError: it does not fit into the GPU's memory.
        """
        try:
            with torch.inference_mode():
                times = self._times(self._call(operation))
        except torch.OutOfMemoryError as error:
            raise CalibrationError(f"{operation} does not fit into the GPU's memory: {error}") from error
        return median(times)

    def _times(self, run: Callable[[], object]) -> list[float]:
        run()  # what is compiled or allocated at the first call; a graph is captured after it
        timed = self._on_gpu(run) if self.on_gpu else _on_cpu(run)
        warm = min(timed() for _ in range(WARM_UPS))
        return [timed() for _ in range(SLOW_REPEATS if warm > SLOW_MS else REPEATS)]

    def _call(self, operation: Operation) -> Callable[[], object]:
        match operation:
            case Gemm():
                return self._gemm(operation)
            case Attention(shared=True):
                return self._latent(operation)
            case Attention():
                return self._attention(operation)
            case Elementwise(moved_bytes):
                source = self._numbers(max(1, moved_bytes // 4))
                target = torch.empty_like(source)
                return lambda: torch.add(source, 1.0, out=target)  # half is read, half written
            case AllReduce():
                raise ValueError("an all-reduce takes several GPUs")

    def _gemm(self, one: Gemm) -> Callable[[], object]:
        if one.groups == 1:
            left, right = self._numbers(one.rows, one.inner), self._numbers(one.columns, one.inner)
            return lambda: torch.nn.functional.linear(left, right)
        many, weights = (
            self._numbers(one.groups, one.rows, one.inner),
            self._numbers(one.groups, one.inner, one.columns),
        )
        return lambda: torch.bmm(many, weights)

    def _attention(self, one: Attention) -> Callable[[], object]:
        query = self._numbers(one.sequences, one.heads, one.new, one.key)
        keys = self._numbers(one.sequences, one.kv_heads, one.context, one.key)
        # Flash attention has one width for keys and values, so that engines pad the narrower ones too.
        values = self._numbers(one.sequences, one.kv_heads, one.context, one.key if self.on_gpu else one.value)
        mask = causal_lower_right(one.new, one.context) if one.new > 1 else None
        grouped = one.kv_heads != one.heads
        if grouped and not self.on_gpu:
            keys, values = (each.repeat_interleave(one.heads // one.kv_heads, 1) for each in (keys, values))
            grouped = False
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(query, keys, values, attn_mask=mask, enable_gqa=grouped)

    def _latent(self, one: Attention) -> Callable[[], object]:
        """Torch has no fused decode over latents: two batched products, which are slower than an engine's kernel."""
        query = self._numbers(one.sequences, one.heads, one.key)
        latents = self._numbers(one.sequences, one.context, one.key)

        def run() -> object:
            weights = torch.softmax(torch.bmm(query, latents.transpose(1, 2)), -1)
            return torch.bmm(weights, latents[:, :, : one.value])

        return run

    def _numbers(self, *sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, dtype=torch.bfloat16, device=self._device)

    def _on_gpu(self, run: Callable[[], object]) -> Callable[[], float]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def timed() -> float:
            self._flushed.zero_()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end))

        return timed


def _on_cpu(run: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        started_s = time.thread_time()
        run()
        return (time.thread_time() - started_s) * 1e3

    return timed
