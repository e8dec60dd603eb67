from router.diagnosis.prefixes import HotPrefixes


def test_prefixes_rank_by_the_tokens_that_they_save():
    prefixes = HotPrefixes()
    for block_hash, tokens, hits in ((1, 100, 9), (2, 2_000, 1), (3, 500, 3)):
        for _ in range(hits):
            prefixes.hit(block_hash, tokens)
    assert [(one.block_hash, one.hits, one.saved_tokens) for one in prefixes.hottest(2)] == [
        (2, 1.0, 2_000.0),
        (3, 3.0, 1_500.0),
    ]


def test_hits_fade_and_are_forgotten():
    prefixes = HotPrefixes()
    prefixes.hit(1, 100)
    prefixes.fade()
    assert 0.9 < prefixes.hottest(1)[0].hits < 1.0
    for _ in range(100):
        prefixes.fade()
    assert prefixes.hottest(9) == []


def test_their_number_is_bounded_and_the_hot_ones_stay():
    prefixes = HotPrefixes(most=10)
    for number in range(1_000):
        prefixes.hit(7, 1_000)
        prefixes.hit(1_000 + number, 16)
    assert len(prefixes.hottest(99)) <= 10
    assert prefixes.hottest(1)[0].hits == 1_000.0
