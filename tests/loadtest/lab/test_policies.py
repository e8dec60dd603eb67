import pytest

from loadtest.lab.policies import normal_policy, parse_policy, policy_text
from policies.registry import BUILT_IN, PolicyError
from policies.spec import PolicySpec


def test_a_text_has_a_rule_wrappers_and_parameters():
    assert parse_policy("lpwl") == PolicySpec("lpwl")
    assert parse_policy("lpwl:hold=true:lanes=false:x=1:mode=soft") == PolicySpec(
        "lpwl", {"x": 1, "mode": "soft"}, hold=True, lanes=False
    )
    assert parse_policy("lpwl:hold=true:hold.max_s=2").hold == {"max_s": 2}
    assert parse_policy("lpwl:lanes.stream_weight=0.2").lanes == {"stream_weight": 0.2}


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


@pytest.mark.parametrize("rule", BUILT_IN)
def test_a_plain_name_is_its_own_spelling(rule):
    assert normal_policy(rule) == rule


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("marginal_cost:hold=true:lanes=true", "marginal_cost"),
        ("marginal_cost:hold.prefills=2", "marginal_cost"),
        ("marginal_cost:lanes=false", "marginal_cost:lanes=false"),
        ("marginal_cost:stream_weight=0:hold.kv_space=0", "marginal_cost:hold.kv_space=0.0:stream_weight=0.0"),
        ("lpwl:hold=false", "lpwl"),
        ("lpwl:lanes=true:hold=true", "lpwl:hold=true:lanes=true"),
        ("lpwl:hold.prefills=2.0", "lpwl:hold=true"),
        ("lpwl:hold.max_s=3:hold.prefills=1", "lpwl:hold.max_s=3.0:hold.prefills=1.0"),
        ("smg_spill:max_load_multiplier=2", None),
    ],
)
def test_equal_policies_have_one_spelling(text, spelling):
    if spelling is None:
        with pytest.raises(PolicyError):
            normal_policy(text)
        return
    assert normal_policy(text) == spelling
    assert normal_policy(spelling) == spelling


def test_text_that_looks_like_a_number_stays_text():
    assert parse_policy('x:name="5"') == PolicySpec("x", {"name": "5"})
    assert policy_text(PolicySpec("lpwl", hold={"max_s": 2.5})) == "lpwl:hold.max_s=2.5"
