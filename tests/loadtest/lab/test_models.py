from dataclasses import fields

from loadtest.lab.models import Models, flag

SIZES = {"chunk_tokens": 8192, "max_num_seqs": 256, "kv_tokens": 440_000}


def test_a_variant_changes_one_parameter_and_what_that_one_needs():
    usual = Models()
    for name, other in usual.variants(SIZES):
        changed = {one for one in fields(Models) if getattr(usual, one.name) != getattr(other, one.name)}
        needed = {field for one in changed for field in fields(Models) if field.name in one.metadata["beside"]}
        assert len(changed - needed) == 1, name
        assert {word.replace("--no-", "--") for word in name.split() if word[:2] == "--"} == {flag(x) for x in changed}


def test_a_dependent_parameter_is_varied_with_the_one_it_needs():
    names = [name for name, _ in Models().variants(SIZES)]
    assert "--kv-lost-share 0.01 --no-kv-replay" in names
    assert {"--scrape-s 2 --replicas 2", "--replicas 2 --replica-delay-s 1"} <= set(names)
    assert "--scrape-s 2" in [name for name, _ in Models(replicas=3).variants(SIZES)]


def test_every_parameter_but_the_block_size_has_variants():
    doubted = {one.name for one in fields(Models) if one.metadata["others"]}
    assert {one.name for one in fields(Models)} - doubted == {"block_tokens"}


def test_sizes_are_halved_and_doubled_from_the_profiles_or_from_what_was_set():
    def tried(models):
        return [other.kv_tokens for name, other in models.variants(SIZES) if name.startswith("--kv-tokens")]

    assert tried(Models()) == [220_000, 880_000]
    assert tried(Models(kv_tokens=100)) == [50, 200]


def test_the_value_in_use_is_no_variant():
    names = [name for name, _ in Models(jitter=0.1, replicas=2).variants(SIZES)]
    assert "--jitter 0.1" not in names and "--jitter 0" in names
    assert not any(name.startswith("--replicas") for name in names)
    assert all(name in dict(Models().variants(SIZES)) for name in ("--kv-lost-share 0.01", "--no-async-scheduling"))
