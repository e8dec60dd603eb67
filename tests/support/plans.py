"""What a plan of calls holds."""

from loadtest.workload.plan import Plan, shared_by_call


def prompt_tokens(plan: Plan) -> int:
    return sum(call.prompt.tokens for session in plan.sessions for call in session.calls)


def reusable_tokens(plan: Plan) -> int:
    """Return the prompt tokens in full blocks that an endless cache would hold."""
    block = plan.block_tokens
    return sum(shared // block * block for _, _, shared in shared_by_call(plan.sessions))
