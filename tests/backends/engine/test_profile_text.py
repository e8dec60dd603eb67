from dataclasses import replace

from backends.engine.profile import DecodeCost, Fingerprint, load_profile
from backends.engine.profile_text import profile_text

CURVE = DecodeCost(1.0, 0.125, 38.0, ((1, 4.7), (8, 10.6)))


def test_the_text_is_read_back(tmp_path):
    path = tmp_path / "mine.toml"
    fingerprint = Fingerprint(gpu='an "odd" \\ GPU\n', tensor_parallel=2, expert_parallel=False, date="2026-11-28")
    packaged = load_profile("llama-3.1-8b-h100")
    written = replace(packaged, name=str(path), provenance='by "me"\nc:\\x', fingerprint=fingerprint, decode=CURVE)
    path.write_text(profile_text(written))
    read = load_profile(str(path))
    assert replace(read, provenance="") == replace(written, provenance="")
    assert read.provenance.strip() == written.provenance


def test_what_is_not_known_is_named():
    text = profile_text(replace(load_profile("llama-3.1-8b-h100"), fingerprint=Fingerprint(gpu="H100")))
    assert "# not known: gpu_memory_bytes, driver, engine" in text
    assert "[fingerprint]" not in profile_text(load_profile("llama-3.1-8b-h100"))
