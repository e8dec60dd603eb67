from router.diagnosis.sessions import TAIL_BLOCKS, Sessions, Turn

BLOCK = 16
CHAIN = list(range(1_000, 2_000))


def chain(blocks):
    return CHAIN[:blocks]


def test_a_longer_prompt_continues_the_one_whose_last_block_it_has():
    sessions = Sessions()
    first = Turn(1, 10 * BLOCK, "a:1")
    sessions.ended(None, chain(10), first)
    assert sessions.before(None, chain(14), 14 * BLOCK, BLOCK) == first
    assert sessions.before(None, chain(14), 14 * BLOCK, BLOCK) is None, "a turn is continued once"


def test_the_longest_earlier_prompt_counts():
    sessions = Sessions()
    for number, blocks in enumerate((4, 12, 8), 1):
        sessions.ended(None, chain(blocks), Turn(number, blocks * BLOCK, "a:1"))
    assert sessions.before(None, chain(20), 20 * BLOCK, BLOCK).prompt_tokens == 12 * BLOCK


def test_a_shared_opening_is_no_earlier_turn():
    sessions = Sessions()
    sessions.ended(None, chain(10), Turn(1, 10 * BLOCK, "a:1"))
    assert sessions.before(None, chain(11), 11 * BLOCK, BLOCK) is None
    assert sessions.before(None, [1, 2, 3], 3 * BLOCK, BLOCK) is None


def test_an_end_far_from_the_tail_is_not_found():
    sessions = Sessions()
    sessions.ended(None, chain(10), Turn(1, 10 * BLOCK, "a:1"))
    assert sessions.before(None, chain(10 + TAIL_BLOCKS), 1_000 * BLOCK, BLOCK) is None


def test_without_blocks_the_session_id_tells():
    sessions = Sessions()
    sessions.ended("s", [], Turn(1, 100, "a:1"))
    assert sessions.before(None, [], 200, BLOCK) is None
    assert sessions.before("s", [], 200, BLOCK) == Turn(1, 100, "a:1")


def test_the_oldest_sessions_are_forgotten():
    sessions = Sessions(most=3)
    for number in range(10):
        sessions.ended(f"s{number}", [], Turn(1, 100, "a:1"))
    sessions.ended(None, [], Turn(1, 100, "a:1"))
    assert sessions.before("s6", [], 200, BLOCK) is None and sessions.before("s7", [], 200, BLOCK) is not None
