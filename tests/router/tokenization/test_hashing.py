from router.tokenization.hashing import CacheKeys


def test_equal_callers_have_equal_keys_and_others_have_others():
    salt = "s"
    keys = CacheKeys.of("adapter", salt)
    assert keys == CacheKeys.of("adapter", salt)
    others = [CacheKeys.of(None, salt), CacheKeys.of("adapter", None), CacheKeys.of("adapter", salt + "2")]
    assert keys not in others
    assert len({one.seed for one in (keys, *others)}) == 4


def test_without_adapter_and_salt_there_are_no_keys():
    assert CacheKeys.of(None, None) == CacheKeys.of("", "") == CacheKeys()
    assert CacheKeys().seed == 0
