"""A change is made in every process, or in none."""

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


async def test_all_make_it_and_it_is_noted(children, change, noted):
    fleet = children([], [], [])
    answers = await Changes(fleet).make(lambda: change)
    assert list(answers) == [0, 1, 2]
    assert [child.asked for child in fleet] == [[("PUT", "/x")]] * 3
    assert noted == ["noted"]


async def test_what_the_first_refuses_nobody_else_is_asked(children, change, noted):
    fleet = children([422], [])
    answers = await Changes(fleet).make(lambda: change)
    assert {number: answer.status_code for number, answer in answers.items()} == {0: 422}
    assert fleet[1].asked == []
    assert not noted
    assert not any(child.killed for child in fleet)


async def test_a_later_refusal_takes_it_back_everywhere(children, change, noted):
    fleet = children([], [409], [])
    with pytest.raises(AdminError) as raised:
        await Changes(fleet).make(lambda: change)
    assert [child.asked for child in fleet] == [
        [("PUT", "/x"), ("DELETE", "/x")],
        [("PUT", "/x")],
        [("PUT", "/x"), ("DELETE", "/x")],
    ]
    assert raised.value.code == "change_taken_back"
    assert "process 1 refused what process 0 accepted: said 409" in raised.value.detail
    assert not noted
    assert not any(child.killed for child in fleet)


async def test_where_it_cannot_be_taken_back_the_process_starts_anew(children, change):
    fleet = children([200, 500], [409], [200, None])
    with pytest.raises(AdminError):
        await Changes(fleet).make(lambda: change)
    assert [child.killed for child in fleet] == [1, 0, 1]


async def test_who_does_not_answer_is_ended_and_the_others_go_on(children, change, noted):
    fleet = children([None], [], [None])
    answers = await Changes(fleet).make(lambda: change)
    assert list(answers) == [1]
    assert [child.killed > 0 for child in fleet] == [True, False, True]
    assert noted == ["noted"], "those started in their place start with the change"


async def test_nobody_serves(children, change, noted):
    with pytest.raises(AdminError) as raised:
        await Changes(children(None, None)).make(lambda: change)
    assert (raised.value.status, raised.value.code) == (503, "no_process")
    assert not noted


async def test_a_process_that_is_starting_is_waited_for(children, change):
    fleet = children([], None)
    fleet[1].settled.clear()
    making = asyncio.create_task(Changes(fleet).make(lambda: change))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fleet[0].asked == []
    fleet[1].settled.set()
    assert list(await making) == [0]
