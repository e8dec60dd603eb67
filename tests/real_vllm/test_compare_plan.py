"""A plan played against vLLM: prompts are the tokens that they stand for, and later turns quote the answers."""

from itertools import pairwise

from backends.simulated.settings import shipped_model_dir
from loadtest.compare.player import play
from loadtest.compare.workers import served_model
from loadtest.workload.plan import Call, Plan, Session
from loadtest.workload.text import Text
from loadtest.workload.wording import Wording


def talk(number):
    first = Text.of([(1, 300), (2 + number, 150 + number)])
    calls, prompt = [], first
    for turn in range(3):
        answer = (1 << 62 | number * 10 + turn, 40 + 7 * turn)
        calls.append(Call(prompt, answer))
        prompt = prompt.plus(answer, (100 + number * 10 + turn, 33))
    return Session(f"talk-{number}", 0.4 * number, tuple(calls))


async def test_every_turn_finds_all_of_the_one_before(plain):
    plain.reset_prefix_cache()
    model, _ = served_model(plain)
    plan = Plan.of("talks", [talk(number) for number in range(4)], 60.0)
    found = await play(plain.url, model, Wording(shipped_model_dir()), plan, 60.0, lambda: None)
    assert not found.errors and len(found.outcomes) == 12
    for before, after in pairwise(sorted(found.outcomes, key=lambda one: one.id)):
        if after.session == before.session:
            # all but the answer's last token has keys and values
            known = before.prompt_tokens + before.output_tokens - 1
            assert after.cached_tokens == known // 16 * 16
