import pytest

from tests.support.answers import DONE, END, STREAM_HEAD, chunk, event
from tests.support.raw_client import post
from tests.support.waiting import eventually

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'


@pytest.mark.parametrize(
    "reads",
    [
        lambda tokens: [ROLE, *tokens, DONE],
        lambda tokens: [ROLE + tokens[0], *tokens[1:], DONE],
        lambda tokens: [*tokens, DONE],
        lambda tokens: [*tokens[:-1], tokens[-1] + DONE],
        lambda tokens: [ROLE + b"".join(tokens) + DONE],
        lambda tokens: [b": hello\n\n", ROLE, *tokens, DONE],
    ],
    ids=["a role first", "and the first token", "no role", "the end with a token", "all at once", "a comment first"],
)
@pytest.mark.parametrize("count", [1, 3])
async def test_tokens_of_an_answer_without_usage_are_counted(rig, reads, count):
    """vLLM sends one event per token. Events with only a role or the end are no tokens."""

    async def script(script):
        await script.say(STREAM_HEAD)
        await script.say_apart(*map(chunk, reads([event(f'"role":{index}') for index in range(count)])))
        await script.say(END)

    gate = await rig(script)
    finished = gate.core.tickets.finished
    counted = []
    gate.core.tickets.finished = lambda ticket, *given, **named: (
        counted.append(ticket.reservation.output_tokens),
        finished(ticket, *given, **named),
    )
    assert (await gate.ask(post())).body.endswith(DONE)
    await eventually(lambda: counted)
    assert counted == [count]
