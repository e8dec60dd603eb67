def test_a_session_stays_whatever_it_asks(build, fleet, request_view):
    policy = build("session_affinity")
    view = fleet(**{name: {} for name in "abcdefgh"})
    first = policy.decide(request_view(session_id="s1", blocks=(1,)), view)
    assert policy.decide(request_view(session_id="s1", blocks=(9, 8)), view).ranked == first.ranked
    assert first.reason == "owner of the session"
    homes = {policy.decide(request_view(session_id=f"s{number}"), view).ranked[0] for number in range(100)}
    assert homes == set("abcdefgh")


def test_it_spills_while_its_owner_is_over_the_bound_and_comes_home(build, fleet, request_view):
    policy = build("session_affinity")
    request = request_view(session_id="sitzung-\udcff-1")
    home, away = policy.decide(request, fleet(a={}, b={})).ranked
    # 1.25 * (3 + 0 + 1) / 2 = 2.5; at two requests 1.25 * 3 / 2 = 1.875 is exceeded, too; at one 1.25 holds
    for requests, expected in [(3, away), (2, away), (1, home)]:
        view = fleet(**{home: {"running_requests": requests}, away: {}})
        assert policy.decide(request, view).ranked[0] == expected


def test_without_a_session_the_fewest_requests_win(build, fleet, request_view, reserved):
    policy = build("session_affinity")
    view = fleet(a={}, b={}, c={"running_requests": 1})
    for expected in "ab":
        decision = policy.decide(request_view(session_id=""), view)
        assert decision.ranked[0] == expected
        assert "no session id" in decision.reason
        reserved(policy, expected, request_view())


def test_gateways_agree_on_the_worker_of_a_session(build, fleet, request_view):
    """Whatever the order in which they know the workers. The names hold for all processes and hosts."""
    names = "abcdefgh"
    requests = [request_view(session_id=f"s{number}") for number in range(12)]
    views = fleet(**{name: {} for name in names}), fleet(**{name: {} for name in reversed(names)})
    homes = [
        "".join(build("session_affinity").decide(request, view).ranked[0] for request in requests) for view in views
    ]
    assert homes == ["hcdadfhgfggf"] * 2
