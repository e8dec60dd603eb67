"""The number of output tokens of a response without usage."""

import asyncio

import pytest

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'


@pytest.mark.parametrize(
    "reads",
    [
        lambda kit, tokens: [ROLE, *tokens, kit.DONE],
        lambda kit, tokens: [ROLE + tokens[0], *tokens[1:], kit.DONE],
        lambda kit, tokens: [*tokens, kit.DONE],
        lambda kit, tokens: [*tokens[:-1], tokens[-1] + kit.DONE],
        lambda kit, tokens: [ROLE + b"".join(tokens) + kit.DONE],
        lambda kit, tokens: [b": hello\n\n", ROLE, *tokens, kit.DONE],
    ],
    ids=["a role first", "and the first token", "no role", "the end with a token", "all at once", "a comment first"],
)
@pytest.mark.parametrize("count", [1, 3])
async def test_tokens_of_an_answer_without_usage_are_counted(rig, kit, reads, count):
    """vLLM sends one event per token. Events with only a role or the end are no tokens."""

    async def script(script):
        await script.say(kit.STREAM_HEAD)
        for read in reads(kit, [kit.event(f'"role":{index}') for index in range(count)]):
            await script.say(kit.chunk(read))
            await asyncio.sleep(0.005)
        await script.say(kit.END)

    gate = await rig(script)
    finished = gate.dispatcher.finished
    counted = []
    gate.dispatcher.finished = lambda ticket, *given, **named: (
        counted.append(ticket.reservation.output_tokens),
        finished(ticket, *given, **named),
    )
    assert (await gate.ask(kit.post())).body.endswith(kit.DONE)
    await kit.eventually(lambda: counted)
    assert counted == [count]
