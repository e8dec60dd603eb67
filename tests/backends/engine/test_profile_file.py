import dataclasses

import pytest

from backends.engine.profile import Fingerprint, OtherFingerprint, UnknownProfile, check_fingerprint, load_profile
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
