import pytest

from backends.engine.profile import UnknownProfile, load_profile, profile_names

NAMES = [
    "llama-3.1-70b-4xh100", "llama-3.1-8b-a100", "llama-3.1-8b-h100", "llama-3.1-8b-h200", "llama-3.1-8b-rtxpro6000",
    "qwen3-32b-2xh100", "qwen3-32b-2xrtxpro6000",
]  # fmt: skip
RECORDED = {"llama-3.1-8b-rtxpro6000", "qwen3-32b-2xrtxpro6000"}


def test_all_profiles_are_packaged():
    assert profile_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_states_its_source_and_error(name):
    profile = load_profile(name)
    assert profile.name == name
    assert ("recording of vLLM 0.19.0" if name in RECORDED else "AIConfigurator 0.12.0") in profile.provenance
    assert "Relative error" in profile.provenance
    assert (profile.block_size, profile.max_num_batched_tokens, profile.max_num_seqs) == (16, 8192, 256)


@pytest.mark.parametrize(
    ("name", "num_blocks"), list(zip(NAMES, (29_375, 27_500, 27_500, 55_000, 34_375, 19_375, 26_875), strict=True))
)
def test_cache_sizes_follow_the_profile(name, num_blocks):
    assert load_profile(name).num_blocks == num_blocks


@pytest.mark.parametrize("name", ["llama", "", "../profile", "llama-3.1-8b-h100.toml"])
def test_an_unknown_name_lists_the_profiles(name):
    with pytest.raises(UnknownProfile, match=r"write one of .*llama-3\.1-8b-h100, llama-3\.1-8b-h200"):
        load_profile(name)
