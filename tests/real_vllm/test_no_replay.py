"""Without a replay socket, a subscriber from the first batch on has an exact view, and a later subscriber does not."""

import pytest

pytestmark = pytest.mark.any_version

PROMPT = "Who comes late hears nothing of what was said before, and nobody repeats it for them here. " * 20


def test_without_a_replay_a_view_is_exact_only_from_the_first_batch(vllm, empty, front):
    server = vllm(replay=False)
    gateway = front(server)
    first = gateway.residency()
    for number in range(4):
        gateway.complete(f"{number} {PROMPT}")
        gateway.complete(f"{number} {PROMPT}")
    assert gateway.residency() == first
    gateway.exact(8)

    late = front(server)
    assert late.residency() != "exact"
    for number in range(4):
        body = {"model": late.model, "prompt": f"{number} {PROMPT}", "max_tokens": 1}
        answer = late.send("/v1/completions", body)
        assert answer.predicted is None or answer.predicted <= answer.reported
        late.settle()
    # After one request, a prompt is known from the report.
    for number in range(4):
        late.complete(f"{number} {PROMPT}")
    for number in range(4, 7):
        late.complete(f"{number} {PROMPT}")
        late.complete(f"{number} {PROMPT}")
    late.exact(10)

    # An emptied cache is known completely.
    empty(server)
    for each in (gateway, late):
        each.wait_for(lambda each=each: each.residency() == "exact", "an exact view after the reset")
    for number in range(6):
        late.complete(f"{number // 2} {PROMPT}")
        gateway.settle()
    late.exact(16)
    for number in range(6):
        gateway.complete(f"{number // 2} {PROMPT} more")
        late.settle()
    gateway.exact(14)
