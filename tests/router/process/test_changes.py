import asyncio

import pytest

from router.admin.http.problems import AdminError
from router.config.model import Config, ModelConfig
from router.control.change import NotAppliedError
from router.control.state.desired_state import DesiredState, live_settings
from router.process.children.changes import Changes

SENT = ("PUT", "/private/desired-state")


@pytest.fixture
def state():
    return DesiredState(version=7, lineage="a", settings=live_settings(Config()))


async def test_all_processes_receive_the_state(children, state):
    fleet = children([], [], [])
    await Changes(fleet).apply(state)
    assert [child.asked for child in fleet] == [[SENT]] * 3
    assert {child.client.state_version for child in fleet} == {"7.0"}


async def test_a_refusal_by_the_first_process_reaches_no_other(children, state):
    fleet = children([409], [])
    with pytest.raises(NotAppliedError, match="said 409"):
        await Changes(fleet).apply(state)
    assert fleet[1].asked == []
    assert not any(child.killed for child in fleet)


async def test_a_process_that_refuses_what_the_first_accepted_is_killed(children, state):
    fleet = children([], [409], [])
    await Changes(fleet).apply(state)
    assert [child.killed for child in fleet] == [0, 1, 0], "the one in its place starts with the state"


async def test_a_silent_process_is_killed_and_the_others_continue(children, state):
    fleet = children([None], [], [None])
    await Changes(fleet).apply(state)
    assert [child.killed for child in fleet] == [1, 0, 1]
    assert fleet[1].client.state_version == "7.0"


async def test_a_change_without_a_serving_process_answers_503(children, state):
    with pytest.raises(AdminError) as raised:
        await Changes(children(None, None)).apply(state)
    assert (raised.value.status, raised.value.code) == (503, "no_process")


async def test_a_change_waits_for_a_starting_process(children, state):
    fleet = children([], None)
    fleet[1].settled.clear()
    making = asyncio.create_task(Changes(fleet).apply(state))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fleet[0].asked == []
    fleet[1].settled.set()
    await making
    assert fleet[0].asked == [SENT]


async def test_a_process_with_another_version_receives_the_state_again(children, state):
    fleet = children([], [], [])
    fleet[0].client.state_version, fleet[1].client.state_version = "7.0", "5.0"
    changes = Changes(fleet)
    assert changes.behind(state) == [fleet[1]], "one that has not answered yet started with the state"
    await changes.correct(state)
    assert [len(child.asked) for child in fleet] == [0, 1, 0]
    assert changes.behind(state) == []


PREPARED = ("PUT", "/private/desired-state/prepare")


def with_models(version, **models):
    settings = live_settings(Config(models={name: ModelConfig(aliases=aliases) for name, aliases in models.items()}))
    return DesiredState(version=version, lineage="a", settings=settings)


async def test_processes_prepare_once_for_the_same_models(children, state):
    fleet = children([204, 204, 204], [204, 204, 204])
    changes = Changes(fleet)
    await changes.apply(with_models(2, m=("chat",)))
    await changes.apply(with_models(3, m=("chat",)))
    assert [child.asked for child in fleet] == [[PREPARED, SENT, SENT]] * 2


@pytest.mark.parametrize(("reply", "reason"), [(409, "said 409"), (None, "did not answer")])
async def test_a_process_that_cannot_prepare_keeps_all_at_the_old_state(children, reply, reason):
    fleet = children([204], [reply])
    with pytest.raises(NotAppliedError, match=reason):
        await Changes(fleet).apply(with_models(2, m=("chat",)))
    assert [child.asked for child in fleet] == [[PREPARED]] * 2
    assert not any(child.killed for child in fleet)
