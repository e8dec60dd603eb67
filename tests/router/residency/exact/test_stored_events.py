import pytest

from backends.vllm.events import BlockRemoved, BlockStored
from router.residency.chain import extra_bytes
from router.residency.exact.stored_events import extra_keys, is_announced_again, own_hashes, tier_of


def stored(*hashes, parent=None, **named):
    return BlockStored(list(hashes), parent, [0] * 4 * len(hashes), 4, **named)


@pytest.mark.parametrize(
    ("medium", "locality", "tier"),
    [
        (None, None, None),
        ("GPU", None, None),
        ("GPU", "LOCAL", None),
        ("CPU", "LOCAL", "CPU"),
        ("CPU", "REMOTE", "REMOTE"),
        ("GPU", "REMOTE", "REMOTE"),
    ],
)
def test_a_remote_store_is_a_tier_of_its_own(medium, locality, tier):
    assert tier_of(medium, locality) == tier


def test_a_first_block_is_announced_again_if_its_child_follows_in_the_same_step():
    events = [stored(1), BlockRemoved([7]), stored(2, parent=1)]
    assert is_announced_again(events[0], events, 0)
    assert not is_announced_again(events[2], events, 2)
    assert not is_announced_again(events[0], [*events[:2], stored(2, parent=5)], 0)
    assert not is_announced_again(events[0], [events[2], events[0]], 1), "the child came before"
    assert not is_announced_again(stored(1, 3), events, 0), "a run of blocks"


def test_own_hashes_are_integers():
    assert own_hashes(stored(1, (2).to_bytes(32, "big"))) == [1, 2]


def test_extra_keys_are_listed_or_made_from_the_adapter():
    assert extra_keys(stored(1, 2, extra_keys=[["a"], None]), 2) == [extra_bytes(["a"]), b""]
    assert extra_keys(stored(1, 2, lora_name="adapter", lora_id=3), 2) == [extra_bytes(["adapter"])] * 2
    assert extra_keys(stored(1, 2, lora_id=3), 2) == [extra_bytes([3])] * 2
    assert extra_keys(stored(1, 2), 2) is None
