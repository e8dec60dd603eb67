import pytest

from router.config.model import PolicyConfig, RouteConfig
from router.placement.named_policies import NamedPolicies, named_policies

SHADOWED = (RouteConfig(name="all", shadow=("batch",)),)


def built(batch):
    return named_policies(PolicyConfig(), {"batch": batch}, SHADOWED, lambda *_: None)


@pytest.mark.parametrize(
    ("batch", "same"),
    [
        (PolicyConfig(rule="random"), True),
        (PolicyConfig(rule="lpwl"), False),
        (PolicyConfig(rule="random", hold=True), False),
        (PolicyConfig(rule="random", seed=1), False),
    ],
)
def test_only_a_policy_with_the_same_settings_stays(batch, same):
    named, shadows = built(PolicyConfig(rule="random"))
    policies = NamedPolicies(named["batch"], named, shadows)
    policies.adopt(*built(batch))
    assert (policies.of("batch") is named["batch"]) is same
    assert (policies.shadows_of("all") is shadows["all"]) is same
