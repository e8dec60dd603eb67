"""A change is made in every process, or in none."""

import asyncio

import pytest

from router.admin.problems import AdminError
from router.process.changes import Change, Changes
from router.process.child_client import Asking

DO, UNDO = Asking("PUT", "/x", {}, b"1"), Asking("DELETE", "/x")


@pytest.fixture
def noted():
    return []


@pytest.fixture
def change(noted):
    return Change(DO, UNDO, lambda: noted.append("noted"))


async def test_all_make_it_and_it_is_noted(keepers, change, noted):
    fleet = keepers([], [], [])
    answers = await Changes(fleet).make(lambda: change)
    assert list(answers) == [0, 1, 2]
    assert [keeper.asked for keeper in fleet] == [[("PUT", "/x")]] * 3
    assert noted == ["noted"]


async def test_what_the_first_refuses_nobody_else_is_asked(keepers, change, noted):
    fleet = keepers([422], [])
    answers = await Changes(fleet).make(lambda: change)
    assert {number: answer.status_code for number, answer in answers.items()} == {0: 422}
    assert fleet[1].asked == []
    assert not noted
    assert not any(keeper.killed for keeper in fleet)


async def test_a_later_refusal_takes_it_back_everywhere(keepers, change, noted):
    fleet = keepers([], [409], [])
    with pytest.raises(AdminError) as raised:
        await Changes(fleet).make(lambda: change)
    assert [keeper.asked for keeper in fleet] == [
        [("PUT", "/x"), ("DELETE", "/x")],
        [("PUT", "/x")],
        [("PUT", "/x"), ("DELETE", "/x")],
    ]
    assert raised.value.code == "change_taken_back"
    assert "process 1 refused what process 0 accepted: said 409" in raised.value.detail
    assert not noted
    assert not any(keeper.killed for keeper in fleet)


async def test_where_it_cannot_be_taken_back_the_process_starts_anew(keepers, change):
    fleet = keepers([200, 500], [409], [200, None])
    with pytest.raises(AdminError):
        await Changes(fleet).make(lambda: change)
    assert [keeper.killed for keeper in fleet] == [1, 0, 1]


async def test_who_does_not_answer_is_ended_and_the_others_go_on(keepers, change, noted):
    fleet = keepers([None], [], [None])
    answers = await Changes(fleet).make(lambda: change)
    assert list(answers) == [1]
    assert [keeper.killed > 0 for keeper in fleet] == [True, False, True]
    assert noted == ["noted"], "those started in their place start with the change"


async def test_nobody_serves(keepers, change, noted):
    with pytest.raises(AdminError) as raised:
        await Changes(keepers(None, None)).make(lambda: change)
    assert (raised.value.status, raised.value.code) == (503, "no_process")
    assert not noted


async def test_a_process_that_is_starting_is_waited_for(keepers, change):
    fleet = keepers([], None)
    fleet[1].settled.clear()
    making = asyncio.create_task(Changes(fleet).make(lambda: change))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fleet[0].asked == []
    fleet[1].settled.set()
    assert list(await making) == [0]
