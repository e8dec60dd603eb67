import pytest

from policies.rendezvous import hash_order, load_bound, prefix_key, text_key


def prompt(request_view, *blocks, tokens=None):
    return request_view(tokens=tokens or 16 * len(blocks), blocks=blocks)


def owner_of(policy, request, fleet):
    return policy.decide(request, fleet).ranked[0]


def test_the_first_tokens_decide_and_not_what_follows(build, fleet, request_view):
    policy = build("chwbl")
    view = fleet(**{name: {} for name in "abcdefgh"})
    long = prompt(request_view, *range(100, 120))
    same = prompt(request_view, *range(100, 116), 1, 2, 3)  # 256 tokens are 16 blocks
    assert policy.decide(long, view).ranked == policy.decide(same, view).ranked
    owners = {owner_of(policy, prompt(request_view, first), view) for first in range(64)}
    assert owners == set("abcdefgh")


def test_the_key_is_whole_blocks_and_at_least_one(request_view):
    request = prompt(request_view, 1, 2, 3)
    assert [prefix_key(request, tokens) for tokens in (1, 16, 31, 32, 256)] == [1, 1, 1, 2, 3]
    assert prefix_key(request_view(), 256) is None


def test_the_owner_is_passed_over_just_above_the_bound(build, fleet, request_view):
    policy = build("chwbl")
    request = prompt(request_view, 7)
    idle = fleet(a={}, b={}, c={}, d={})
    owner, second, *_ = policy.decide(request, idle).ranked
    others = [view.id for view in idle.workers if view.id != owner]
    # 1.25 * (5 + 10 + 1) / 4 = 5.0: five requests are within, six (1.25 * 17 / 4 = 5.31) are over
    within = fleet(
        **{owner: {"running_requests": 5}, **{name: {"running_requests": 5} for name in others[:2]}, others[2]: {}}
    )
    assert load_bound(within, 1.25) == 5.0
    assert owner_of(policy, request, within) == owner
    over = fleet(
        **{owner: {"running_requests": 6}, **{name: {"running_requests": 5} for name in others[:2]}, others[2]: {}}
    )
    decision = policy.decide(request, over)
    assert decision.ranked[0] == second
    assert decision.ranked[-1] == owner
    assert f"owner {owner} has 6 requests, over 5.3" in decision.reason
    assert decision.terms[owner] == {"requests": 6, "bound": pytest.approx(5.3125)}


def test_without_a_full_block_the_fewest_requests_win(build, fleet, request_view, reserved):
    policy = build("chwbl")
    view = fleet(a={"running_requests": 1}, b={}, c={})
    assert owner_of(policy, request_view(), view) == "b"
    reserved(policy, "b", request_view())
    assert owner_of(policy, request_view(), view) == "c"


def test_a_worker_that_leaves_takes_only_its_own_keys_along():
    before, after = "abcdef", "abdef"
    for key in map(text_key, map(str, range(300))):
        order = [before[place] for place in hash_order(key, before)]
        assert [after[place] for place in hash_order(key, after)] == [worker for worker in order if worker != "c"]


def test_hashings_are_independent():
    keys = map(text_key, map(str, range(800)))
    same = sum(hash_order(key, "abcdefgh", 1)[0] == hash_order(key, "abcdefgh", 2)[0] for key in keys)
    assert 60 < same < 140  # one in eight by chance
