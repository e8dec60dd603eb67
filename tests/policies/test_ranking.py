from policies.ranking import by_cost, by_key


def test_by_cost_ties_and_then_the_fleets_order(fleet):
    view = fleet(a={"queued_tokens": 2}, b={"queued_tokens": 1, "running_requests": 1}, c={"queued_tokens": 1}, d={})
    decision = by_cost(
        view,
        lambda worker: float(worker.queued_tokens),
        lambda worker: (worker.running_requests,),
        "why",
        "tokens",
        lambda worker: {"queued": worker.queued_tokens},
    )
    assert decision.ranked == ("d", "c", "b", "a")
    assert decision.costs == (0.0, 1.0, 1.0, 2.0)
    assert (decision.reason, decision.unit) == ("why", "tokens")
    assert decision.terms["a"] == {"queued": 2}
    same = by_cost(view, lambda worker: 0.0, lambda worker: (0,), "", "", lambda worker: {})
    assert same.ranked == ("a", "b", "c", "d")


def test_by_key_has_no_costs(fleet):
    view = fleet(a={}, b={"cached_tokens": 5}, c={"cached_tokens": 5})
    decision = by_key(view, lambda worker: (-worker.cached_tokens,), "match", lambda worker: {})
    assert (decision.ranked, decision.costs, decision.unit) == (("b", "c", "a"), (), "")
