from backends.engine.events import BlocksCached, BlocksEvicted, CacheCleared
from backends.engine.host_blocks import HostBlocks


def stored(*hashes, parent=None):
    return BlocksCached(hashes, parent, list(range(4 * len(hashes))), 4, None, (None,) * len(hashes))


def test_each_block_is_announced_alone_and_once():
    host = HostBlocks(10)
    first, second = host.copy([stored(1, 2)])
    assert (first.hashes, first.parent, first.token_ids) == ((1,), None, [0, 1, 2, 3])
    assert (second.hashes, second.parent, second.token_ids) == ((2,), 1, [4, 5, 6, 7])
    assert host.copy([stored(1, 2), BlocksEvicted((1,)), CacheCleared()]) == []
    assert (host.prefix([1, 2, 3]), host.prefix([3]), len(host)) == (2, 0, 2)


def test_the_blocks_used_longest_ago_make_room():
    host = HostBlocks(2)
    host.copy([stored(1, 2)])
    host.copy([stored(1)])
    assert host.copy([stored(3, parent=1)])[-1] == BlocksEvicted((2,))
    assert host.prefix([1, 3]) == 2
