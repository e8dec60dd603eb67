"""A change is made in every process or in none."""

import asyncio

import pytest

from router.admin.problems import AdminError
from router.process.children.changes import Change, Changes
from router.process.children.child_client import ChildRequest

DO, UNDO = ChildRequest("PUT", "/x", {}, b"1"), ChildRequest("DELETE", "/x")


@pytest.fixture
def noted():
    return []


@pytest.fixture
def change(noted):
    return Change(DO, UNDO, lambda: noted.append("noted"))


async def test_all_processes_change_and_the_change_is_recorded(children, change, noted):
    fleet = children([], [], [])
    answers = await Changes(fleet).make(lambda: change)
    assert list(answers) == [0, 1, 2]
    assert [child.asked for child in fleet] == [[("PUT", "/x")]] * 3
    assert noted == ["noted"]


async def test_a_refusal_by_the_first_process_reaches_no_other(children, change, noted):
    fleet = children([422], [])
    answers = await Changes(fleet).make(lambda: change)
    assert {number: answer.status_code for number, answer in answers.items()} == {0: 422}
    assert fleet[1].asked == []
    assert not noted
    assert not any(child.killed for child in fleet)


async def test_a_later_refusal_undoes_the_change_everywhere(children, change, noted):
    fleet = children([], [409], [])
    with pytest.raises(AdminError) as raised:
        await Changes(fleet).make(lambda: change)
    assert [child.asked for child in fleet] == [
        [("PUT", "/x"), ("DELETE", "/x")],
        [("PUT", "/x")],
        [("PUT", "/x"), ("DELETE", "/x")],
    ]
    assert raised.value.code == "change_undone"
    assert "process 1 refused what process 0 accepted: said 409" in raised.value.detail
    assert not noted
    assert not any(child.killed for child in fleet)


async def test_a_process_that_cannot_undo_is_killed(children, change):
    fleet = children([200, 500], [409], [200, None])
    with pytest.raises(AdminError):
        await Changes(fleet).make(lambda: change)
    assert [child.killed for child in fleet] == [1, 0, 1]


async def test_a_silent_process_is_killed_and_the_others_continue(children, change, noted):
    fleet = children([None], [], [None])
    answers = await Changes(fleet).make(lambda: change)
    assert list(answers) == [1]
    assert [child.killed > 0 for child in fleet] == [True, False, True]
    assert noted == ["noted"], "those started in their place start with the change"


async def test_a_change_without_a_serving_process_answers_503(children, change, noted):
    with pytest.raises(AdminError) as raised:
        await Changes(children(None, None)).make(lambda: change)
    assert (raised.value.status, raised.value.code) == (503, "no_process")
    assert not noted


async def test_a_change_waits_for_a_starting_process(children, change):
    fleet = children([], None)
    fleet[1].settled.clear()
    making = asyncio.create_task(Changes(fleet).make(lambda: change))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fleet[0].asked == []
    fleet[1].settled.set()
    assert list(await making) == [0]
