"""What a plan of calls holds."""

from loadtest.workload.plan import Plan, reusable_by_call


def prompt_tokens(plan: Plan) -> int:
    return sum(call.prompt.tokens for session in plan.sessions for call in session.calls)


def reusable_tokens(plan: Plan) -> int:
    """Return the prompt tokens in full blocks that an endless cache would hold."""
    return sum(reusable for *_, reusable in reusable_by_call(plan.sessions, plan.block_tokens))
