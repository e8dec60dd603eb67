"""A plan over HTTP against an embedded worker that does not wait."""

import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import SHIPPED_MODEL, WorkerSettings, shipped_model_dir
from loadtest.compare.player import play
from loadtest.sim.outcome import Ending
from loadtest.workload.plan import Call, Plan, Session
from loadtest.workload.text import Text
from loadtest.workload.wording import Wording

FIRST = Text.of([(1, 400), (2, 37)])
ANSWER = (1 << 62, 43)
SECOND = FIRST.plus(ANSWER, (3, 50))
TALK = Session("talk", 0.05, (Call(FIRST, ANSWER), Call(SECOND, (1 << 62 | 1, 5), pause_s=0.1)))


@pytest.fixture(scope="module")
def wording():
    return Wording(shipped_model_dir())


async def played(wording, *sessions, until_s=60.0, model=SHIPPED_MODEL):
    ended = []
    async with serving(WorkerSettings(time_scale=0, kv_events=False)) as worker:
        plan = Plan.of("test", sessions, 60.0)
        return await play(worker.url, model, wording, plan, until_s, lambda: ended.append(1)), len(ended)


async def test_a_next_turn_finds_prompt_and_answer_of_the_one_before(wording):
    found, ended = await played(wording, TALK)
    assert (ended, found.errors) == (2, [])
    first, second = found.outcomes
    assert (first.id, second.id, first.ending) == ("talk/0", "talk/1", Ending.FINISHED)
    assert (first.prompt_tokens, first.cached_tokens, first.output_tokens) == (437, 0, 43)
    # all but the answer's last token has keys and values: 479 of 480, in blocks of 16
    assert (second.prompt_tokens, second.cached_tokens, second.output_tokens) == (530, 464, 5)
    assert first.sent_s == pytest.approx(0.05, abs=1e-6)
    assert first.sent_s < first.sent_s + first.ttft_s <= first.ended_s
    assert second.sent_s == pytest.approx(first.ended_s + 0.1, abs=0.1)


async def test_no_call_is_sent_after_the_end(wording):
    late = Session("late", 0.3, TALK.calls)
    found, _ = await played(wording, TALK, late, until_s=0.1)
    assert [one.id for one in found.outcomes] == ["talk/0"]


async def test_a_failed_call_ends_its_session_and_is_reported(wording):
    found, ended = await played(wording, TALK, model="another")
    assert ended == 1
    assert found.outcomes[0].ending is Ending.REJECTED
    assert found.errors[0].startswith("refused: status 404")
