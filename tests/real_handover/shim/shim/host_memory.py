"""vLLM's offloading to host memory without a GPU: its own code, with the device's copies replaced by the CPU's."""

import ctypes
import importlib.util
from contextlib import nullcontext
from types import SimpleNamespace

from vllm.v1.kv_offload.cpu import spec as host_spec
from vllm.v1.kv_offload.tiering import spec as tiering_spec


class _Done:
    """A stream or an event of a device whose work has always ended."""

    def __init__(self, **_):
        pass

    def query(self):
        return True

    def elapsed_time(self, end):
        return 0.0

    def record(self, *_):
        pass

    wait_stream = wait_event = synchronize = record


def _copy(sources, targets, sizes, **_):
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, size)


def _worker_module():
    """Return vLLM's worker for offloading as a module of its own, without its check for a GPU."""
    found = importlib.util.find_spec("vllm.v1.kv_offload.cpu.gpu_worker")
    module = importlib.util.module_from_spec(found)
    source = found.loader.get_source(found.name)
    changed = source.replace("assert gpu_tensor.is_cuda or gpu_tensor.is_xpu\n", "\n")
    changed = changed.replace("torch.Event(enable_timing=True)", "_Done()")
    assert changed.count("_Done()") == 2 and "is_cuda" not in changed, "vLLM's worker for offloading has changed"
    module._Done = _Done
    exec(compile(changed, found.origin, "exec"), module.__dict__)
    no, streams = (lambda: False), (lambda stream: nullcontext())
    module.current_platform = SimpleNamespace(
        is_xpu=no, is_rocm=no, Stream=_Done, current_stream=_Done, stream=streams, device_name="cpu"
    )
    module.ops = SimpleNamespace(swap_blocks_batch=_copy)
    module.HAS_TRITON = False
    return module


class _OnHost:
    """A spec whose workers need no GPU."""

    def get_worker(self, kv_caches):
        if not self._worker:
            self._worker = self.create_worker(kv_caches)
        return self._worker


class HostTieringSpec(_OnHost, tiering_spec.TieringOffloadingSpec):
    pass


host_spec.CPUOffloadingWorker = tiering_spec.CPUOffloadingWorker = _worker_module().CPUOffloadingWorker
