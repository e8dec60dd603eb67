import asyncio
import json

import pytest
import uvloop

from router.process.child_client import Asking, Reply, Unanswered


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}


class FakeMember:
    """A process that answers what it was told to, and notes what it was asked."""

    def __init__(self, number: int, answers=()) -> None:
        self.number = number
        self.asked: list[Asking] = []
        self.answers = list(answers)

    async def ask(self, asking: Asking, limit_s: float = 5.0) -> Reply:
        self.asked.append(asking)
        answer = self.answers.pop(0) if self.answers else 200
        if answer is None:
            raise Unanswered(f"process {self.number} did not answer (TimeoutError)")
        if isinstance(answer, int):
            answer = (answer, {"detail": f"said {answer}"})
        return Reply(answer[0], json.dumps(answer[1]).encode())


class FakeKeeper:
    """A keeper whose process never changes."""

    def __init__(self, number: int, answers=(), *, serves: bool = True) -> None:
        self.number = number
        self.member = FakeMember(number, answers) if serves else None
        self.settled = asyncio.Event()
        self.settled.set()
        self.killed = 0

    def kill(self) -> None:
        self.killed += 1

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(asking.method, asking.path) for asking in self.member.asked]


@pytest.fixture
def keepers():
    """One keeper per list of answers; None in place of a list: its process does not serve."""

    def make(*answers) -> list[FakeKeeper]:
        return [FakeKeeper(number, each or (), serves=each is not None) for number, each in enumerate(answers)]

    return make
