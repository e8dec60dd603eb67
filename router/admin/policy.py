"""Show the policy in use, or choose another one."""

from __future__ import annotations

import msgspec

from policies.registry import PolicyError, describe, policy_names
from router.admin import changes
from router.admin.documents import AvailablePolicy, PolicyDocument
from router.admin.operations import Answer, Call


async def show(call: Call) -> Answer:
    """Answer with the policy in use."""
    return changes.versioned(call, Answer(_document(call)))


async def change(call: Call) -> Answer:
    """Build the policy, then swap it in. A policy that cannot be built leaves the old one in place."""
    outcome = await changes.set_policy(call)
    return changes.dry(outcome) if call.dry_run else changes.done(outcome, Answer(_document(call)))


def _document(call: Call) -> PolicyDocument:
    dispatcher = call.system.dispatcher
    return PolicyDocument(
        name=dispatcher.policy_name,
        params=dict(dispatcher.policy_params),
        statistics=dispatcher.policy_statistics(),
        available=_available(),
    )


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
