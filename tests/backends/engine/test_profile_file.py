import dataclasses
import random

import pytest

from backends.engine.profile import (
    DecodeCost,
    Fingerprint,
    OtherFingerprint,
    UnknownProfile,
    check_fingerprint,
    load_profile,
)
from backends.engine.timing import StepTiming
from backends.simulated.settings import WorkerSettings
from backends.simulated.worker import SimulatedWorker

TEXT = """
model = "m"
hardware = "1 x H100"
provenance = "measured"
kv_tokens = 64_000
block_size = 32
max_num_batched_tokens = 4096
max_num_seqs = 128
[prefill]
a_ms = 4
b_us = 20.0
d_ns = 0.8
[decode]
a_ms = 6.0
b_ms = 0.01
k_ns = 40.0
[fingerprint]
gpu = "H100"
dtype = "bfloat16"
tensor_parallel = 1
date = "2026-11-28"
"""
SEEN = Fingerprint(gpu="H100", dtype="bfloat16", tensor_parallel=1, engine="vllm 0.33.0", date="2026-12-01")


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "mine.toml"
    found.write_text(TEXT)
    return found


def test_a_file_is_a_profile_like_a_packaged_one(path):
    profile = load_profile(str(path))
    assert (profile.name, profile.num_blocks, profile.prefill.a_ms) == (str(path), 2_000, 4.0)
    assert profile.fingerprint.gpu == "H100" and profile.fingerprint.driver is None
    assert "driver" in profile.fingerprint.unknown() and "gpu" not in profile.fingerprint.unknown()


def test_an_embedded_worker_runs_it(path):
    worker = SimulatedWorker(WorkerSettings(profile=str(path), kv_events=False))
    assert worker.engine.block_size == 32


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("block_size = 32", "", "block_size"),
        ("block_size = 32", "block_size = 0", ">= 1"),
        ("k_ns = 40.0", "k_ns = -1.0", ">= 0"),
        ("k_ns = 40.0", "k_ns = nan", ">= 0"),
        ("[decode]", "[decode", "is no profile"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(path, old, new, words):
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(UnknownProfile, match=words):
        load_profile(str(path))


def test_a_missing_file_is_unknown(tmp_path):
    with pytest.raises(UnknownProfile, match="or the path of a"):
        load_profile(str(tmp_path / "none.toml"))


def test_equal_fingerprints_pass_and_unknown_fields_are_named(path):
    unknown = check_fingerprint(load_profile(str(path)), SEEN)
    assert "engine" in unknown and "driver" in unknown and "date" not in unknown and "gpu" not in unknown


@pytest.mark.parametrize(("field", "value"), [("gpu", "H200"), ("dtype", "float16"), ("tensor_parallel", 2)])
def test_a_field_that_differs_is_named(path, field, value):
    with pytest.raises(OtherFingerprint, match=f"{field} is .* in the profile, {value} here"):
        check_fingerprint(load_profile(str(path)), dataclasses.replace(SEEN, **{field: value}))


def test_a_profile_without_fingerprint_is_refused():
    with pytest.raises(OtherFingerprint, match="no fingerprint"):
        check_fingerprint(load_profile("llama-3.1-8b-h100"), SEEN)


CURVE = DecodeCost(1.0, 0.1, 38.0, ((1, 4.7), (8, 10.6), (32, 21.9)))
"""Of Qwen3-30B-A3B on an H100."""


@pytest.mark.parametrize(("decodes", "fixed_ms"), [(1, 4.7), (8, 10.6), (20, 16.25), (32, 21.9), (42, 22.9)], ids=str)
def test_a_curve_of_batches_takes_the_place_of_a_line(decodes, fixed_ms):
    assert CURVE.fixed_ms(decodes) == pytest.approx(fixed_ms)
    profile = dataclasses.replace(load_profile("llama-3.1-8b-h100"), decode=CURVE)
    timing = StepTiming(profile, random.Random(0))
    step_s = (fixed_ms + 38.0 * 1e-6 * 4_000) / 1e3
    assert timing.step_s([], decodes, 4_000) == timing.decode_steps_s(2, decodes, 4_000)[0] == pytest.approx(step_s)


def test_a_curve_is_read_and_has_to_ascend(path):
    path.write_text(TEXT.replace("k_ns = 40.0", "k_ns = 40.0\nby_batch = [[1, 4.7], [8, 10.6]]"))
    assert load_profile(str(path)).decode.by_batch == ((1, 4.7), (8, 10.6))
    path.write_text(TEXT.replace("k_ns = 40.0", "k_ns = 40.0\nby_batch = [[8, 4.7], [1, 10.6]]"))
    with pytest.raises(UnknownProfile, match="have to ascend"):
        load_profile(str(path))


def test_costs_are_scaled_with_their_curve():
    found = CURVE.scaled(2.0, 1.0)
    assert (found.a_ms, found.b_ms, found.k_ns) == (3.0, 0.2, 76.0)
    assert [found.fixed_ms(decodes) for decodes in (1, 20)] == pytest.approx([10.4, 33.5])
