"""The policy in use, and the further ones that routes can name."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from policies.params import Params
from policies.registry import PolicyError, describe, describe_wrappers, hold_of, lanes_of, policy_names
from router.admin import changes
from router.admin.documents import Body, Shape
from router.admin.operations import Answer, Call, change, read
from router.config.model import PolicyConfig, Section
from router.control.state import edits


class NewPolicy(Body):
    """The policy to use from the next request on.

    `hold` and `lanes` are false, true, or true with parameters. Without them, what is on stays on, and what was
    switched off stays off; a further policy that is new has the rule's default.
    """

    settings: ClassVar[type[Section]] = PolicyConfig
    rule: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    hold: bool | dict[str, Any] | None = None
    lanes: bool | dict[str, Any] | None = None


class AvailablePolicy(Shape):
    """A rule that can be chosen, its parameters with type and default, and the terms of its cost in one line each.

    `hold` and `lanes` say whether these wrappers are around it by default.
    """

    rule: str
    summary: str
    params: dict[str, Any]
    terms: dict[str, str]
    hold: bool
    lanes: bool


class AvailableWrapper(Shape):
    """A wrapper around any rule, and its parameters with type and default."""

    summary: str
    params: dict[str, Any]


class PolicyDocument(Shape):
    """The policy in use, the rules that can be chosen, and the wrappers around them.

    `hold` and `lanes` are false, or the parameters in force. `statistics` is the policy's own state, in the process
    that answers.
    """

    rule: str
    params: dict[str, Any]
    hold: bool | dict[str, Any]
    lanes: bool | dict[str, Any]
    statistics: dict[str, Any]
    available: list[AvailablePolicy]
    wrappers: dict[str, AvailableWrapper]


class Policies(Shape):
    """The further policies by name. Their fields are those of the setting `policies`."""

    policies: dict[str, PolicyConfig]


@read("policy", PolicyDocument, versioned=True, processes="first")
async def get_policy(call: Call) -> Answer:
    """The policy in use, and all policies that can be chosen."""
    return Answer(_document(call))


@change("PUT", "policy", takes=NewPolicy, gives=PolicyDocument)
async def set_policy(call: Call) -> Answer:
    """Choose another policy, from the next request on."""
    outcome = await changes.make(call, edits.set_policy(_wanted(call)), f"chose policy {call.body.rule}")
    return await changes.answered(call, outcome, get_policy)


@read("policies", Policies, versioned=True)
async def list_policies(call: Call) -> Answer:
    """The further policies by name, which routes can choose."""
    return Answer(Policies(policies=dict(call.system.control.state.settings.policies)))


@change("PUT", "policies/{name}", takes=NewPolicy, gives=Policies)
async def put_policy(call: Call) -> Answer:
    """Add a further policy, or change the one of that name, from the next request on."""
    name = call.path["name"]
    outcome = await changes.make(call, edits.set_named_policy(name, _wanted(call)), f"set policy {name}")
    return await changes.answered(call, outcome, list_policies)


@change("DELETE", "policies/{name}", problems={404: "no such policy", 422: "a route names it"})
async def remove_policy(call: Call) -> Answer:
    """Remove a further policy that no route names."""
    name = call.path["name"]
    return await changes.answered(
        call, await changes.make(call, edits.remove_named_policy(name), f"removed policy {name}")
    )


def _wanted(call: Call) -> PolicyConfig:
    wanted: NewPolicy = call.body
    return PolicyConfig(wanted.rule, wanted.params, wanted.hold, wanted.lanes)


def _document(call: Call) -> PolicyDocument:
    runner = call.process.core.policies.default
    spec = runner.spec
    return PolicyDocument(
        rule=spec.rule,
        params=dict(spec.params),
        hold=_in_force(hold_of(spec)),
        lanes=_in_force(lanes_of(spec)),
        statistics=runner.shown(),
        available=_available(),
        wrappers={name: msgspec.convert(about, AvailableWrapper) for name, about in describe_wrappers().items()},
    )


def _in_force(params: Params | None) -> bool | dict[str, Any]:
    return False if params is None else msgspec.structs.asdict(params)


def _available() -> list[AvailablePolicy]:
    found = []
    for name in policy_names():
        try:
            found.append(msgspec.convert(_plain(describe(name)), AvailablePolicy))
        except PolicyError:
            continue  # it cannot be loaded, so it cannot be chosen; a request for it gets the reason
    return found


def _plain(description: dict[str, object]) -> dict[str, object]:
    """Leave out "default" for a required parameter: JSON has no value for it."""
    params = description["params"]
    assert isinstance(params, dict)
    shown = {
        name: {key: value for key, value in about.items() if value is not msgspec.NODEFAULT}
        for name, about in params.items()
    }
    return {**description, "params": shown}
