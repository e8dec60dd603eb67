"""Show the policy in use, or choose another one."""

from __future__ import annotations

from typing import Any

import msgspec

from policies.params import Params
from policies.registry import PolicyError, describe, describe_wrappers, hold_of, lanes_of, policy_names
from router.admin import changes
from router.admin.documents import AvailablePolicy, AvailableWrapper, PolicyDocument
from router.admin.operations import Answer, Call


async def show(call: Call) -> Answer:
    return changes.versioned(call, Answer(_document(call)))


async def change(call: Call) -> Answer:
    """Build the policy, then swap it in. A policy that cannot be built leaves the old one in place."""
    outcome = await changes.set_policy(call)
    return changes.dry(outcome) if call.dry_run else changes.done(outcome, Answer(_document(call)))


def _document(call: Call) -> PolicyDocument:
    dispatcher = call.system.dispatcher
    spec = dispatcher.policy_spec
    return PolicyDocument(
        rule=spec.rule,
        params=dict(spec.params),
        hold=_in_force(hold_of(spec)),
        lanes=_in_force(lanes_of(spec)),
        statistics=dispatcher.policy_statistics(),
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
