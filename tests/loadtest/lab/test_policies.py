import pytest

from loadtest.lab.policies import parse_policy
from policies.registry import PolicyError
from policies.spec import PolicySpec


def test_a_text_has_a_rule_wrappers_and_parameters():
    assert parse_policy("lpwl") == PolicySpec("lpwl")
    assert parse_policy("lpwl:hold=true:lanes=false:x=1:mode=soft") == PolicySpec(
        "lpwl", {"x": 1, "mode": "soft"}, hold=True, lanes=False
    )
    assert parse_policy("lpwl:hold=true:hold.max_s=2").hold == {"max_s": 2}
    assert parse_policy("lpwl:lanes.stream_weight=0.2").lanes == {"stream_weight": 0.2}
    assert parse_policy('x:name="5"') == PolicySpec("x", {"name": "5"}), "text that looks like a number stays text"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lpwl:x", "write lpwl:x=VALUE"),
        ("lpwl:hold=2", "policy.hold: 2 will not do; write hold=true or hold=false"),
        ("lpwl:hold=false:hold.max_s=2", "leave out hold=false or the parameters"),
    ],
)
def test_a_text_that_names_no_policy_names_the_fix(text, words):
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert words in str(caught.value)
