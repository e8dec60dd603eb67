from router.cli.operate.differences import rows


def test_a_plain_difference_is_one_row():
    assert list(rows([{"path": "policy.rule", "before": "a", "after": "b"}])) == [("policy.rule", '"a"', '"b"')]
    assert list(rows([{"path": "workers[a]", "after": {"url": "u", "name": None, "labels": {}}}])) == [
        ("workers[a]", "-", '{"url": "u"}')
    ]


def test_a_list_of_named_items_has_a_row_for_each_field():
    before = [{"name": "eval", "max_requests": 32, "shadow": []}, {"name": "old"}, {"name": "rest"}]
    after = [{"name": "eval", "max_requests": 33, "shadow": ["lpwl"]}, {"name": "rest"}, {"name": "new"}]
    assert list(rows([{"path": "routes", "before": before, "after": after}])) == [
        ("routes[eval].max_requests", "32", "33"),
        ("routes[eval].shadow", "[]", '["lpwl"]'),
        ("routes[old]", '{"name": "old"}', "-"),
        ("routes[new]", "-", '{"name": "new"}'),
    ]


def test_another_order_of_named_items_is_a_row():
    before, after = [{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}]
    assert list(rows([{"path": "routes", "before": before, "after": after}])) == [("order of routes", "a, b", "b, a")]


def test_a_list_without_names_is_one_row():
    assert list(rows([{"path": "x", "before": [1], "after": [{"name": "a"}]}])) == [("x", "[1]", '[{"name": "a"}]')]
    twice = [{"name": "a"}, {"name": "a"}]
    assert len(list(rows([{"path": "x", "before": twice, "after": [{"name": "a"}]}]))) == 1
