"""The profile of kernels, with a timer in place of torch's."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from backends.engine.profile import Fingerprint, load_profile
from backends.engine.profile_text import profile_text
from loadtest.calibrate.kernels import profile as kernels
from loadtest.calibrate.kernels.compose import Ranks
from loadtest.calibrate.kernels.profile import KernelSource, profile_of_kernels
from loadtest.calibrate.readings import CalibrationError, Kind, Reading, prefill_reading, step_ms
from loadtest.calibrate.worker.facts import MeasuredWorker, Target
from loadtest.calibrate.worker.plan import WorkerLimits, plan
from tests.loadtest.calibrate.test_kernels import made_up_gpu
from tests.loadtest.calibrate.test_on_worker import refused
from tests.loadtest.calibrate.test_shape import DEEPSEEK_V2_LITE, LLAMA_8B

LIMITS = WorkerLimits(131_072, 440_000, 16, 8_192, 256, True)
WORKER = Target("http://w:1")
SAID = Fingerprint(gpu="Made-up GPU", engine="vllm 0.33.0", tensor_parallel=1)


class MadeUpTimer:
    on_gpu = True
    ms = staticmethod(made_up_gpu)

    def fingerprint(self):
        return Fingerprint(gpu="Made-up GPU", torch="2.13.0")


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "loadtest.calibrate.kernels.torch_timer", SimpleNamespace(TorchTimer=MadeUpTimer))
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder / "config.json"


@pytest.fixture
def source(config):
    return KernelSource(config, Ranks(), LIMITS)


async def test_a_profile_of_kernels_alone_says_what_is_missing(source, tmp_path):
    said = []
    found = await profile_of_kernels(source, None, said.append)
    assert said[0] == "timing kernels on Made-up GPU"
    assert "not known: the time of the engine's scheduler" in said[-1] and "Not known: the time" in found.provenance
    assert (found.model, found.hardware, found.kv_tokens) == ("Llama-3.1-8B", "1 x Made-up GPU", 440_000)
    assert found.fingerprint.engine is None and found.fingerprint.max_num_seqs == 256
    path = tmp_path / "p.toml"
    path.write_text(profile_text(found))
    assert load_profile(str(path)).decode.a_ms == pytest.approx(found.decode.a_ms, rel=1e-3)


async def test_a_mixture_of_experts_gets_a_curve(source, config):
    config.write_text(json.dumps(DEEPSEEK_V2_LITE))
    found = await profile_of_kernels(replace(source, hardware="H9"), None, print)
    assert [batch for batch, _ in found.decode.by_batch] == [1, 8, 16, 32, 64, 128, 256]
    assert found.hardware == "1 x H9"


async def test_times_are_scaled_to_a_worker(source, monkeypatch):
    alone = await profile_of_kernels(source, None, print)
    costs = alone.prefill.scaled(1.2, 3.0), alone.decode.scaled(0.9, 1.5)
    shapes = [prefill_reading(1.0, tokens, 0, 8_192) for tokens in (512, 512, 32_768, 32_768)]
    shapes += [Reading(Kind.DECODE, "", 1.0, decodes=b, context_tokens=s) for b, s in ((1, 500), (64, 64_000))]
    readings = [replace(one, ms=step_ms(one, *costs)) for one in shapes]

    async def measured(target, chosen, say):
        steps = chosen(plan(LIMITS))
        assert (len(steps.prompts), len(steps.batches), steps.extension_tokens, steps.requests()) == (2, 2, None, 10)
        return MeasuredWorker("llama", LIMITS, SAID), steps, readings

    monkeypatch.setattr(kernels, "measured", measured)
    found = await profile_of_kernels(replace(source, limits=None), WORKER, print)
    assert (found.prefill.a_ms, found.prefill.b_us) == pytest.approx((costs[0].a_ms, costs[0].b_us))
    assert (found.decode.a_ms, found.decode.k_ns) == pytest.approx((costs[1].a_ms, costs[1].k_ns))
    assert found.model == "llama" and "scaled to 10 requests to vllm 0.33.0" in found.provenance
    with pytest.raises(CalibrationError, match="tensor_parallel is 1 on the worker, and 2 for the kernels"):
        await profile_of_kernels(replace(source, limits=None, ranks=Ranks(2, 400.0)), WORKER, print)


async def test_what_cannot_be_is_refused(source, config):
    with pytest.raises(CalibrationError, match="32 heads cannot be split over 3 ranks"):
        await profile_of_kernels(replace(source, ranks=Ranks(3, 1.0)), None, print)
    assert "write --kv-tokens" in await refused(str(config))
    assert "write --link-gb-per-s" in await refused(str(config), "--tensor-parallel", "2")
    assert "there is no --kv-tokens" in await refused(str(config), "--worker", "http://w:1", "--kv-tokens", "9")
    assert "only a config.json has --kv-tokens" in await refused("http://w:1", "--kv-tokens", "9")


async def test_torch_is_asked_for_by_its_extra(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "loadtest.calibrate.kernels.torch_timer", None)
    flags = ("--kv-tokens", "9000", "--max-num-batched-tokens", "8192", "--max-num-seqs", "256")
    assert "pip install 'warmroute[calibrate]'" in await refused(str(config), *flags)
