import asyncio
import json

import pytest
import uvloop

from router.admin.replies import Reply
from router.process.children.child_client import ChildRequest, NoReplyError


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}


class FakeChildClient:
    """A process that gives prepared answers and records requests. It runs the state that it last accepted."""

    def __init__(self, number: int, answers=()) -> None:
        self.number = number
        self.asked: list[ChildRequest] = []
        self.answers = list(answers)
        self.state_version = None

    async def ask(self, request: ChildRequest, limit_s: float = 5.0) -> Reply:
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else 200
        if answer is None:
            raise NoReplyError(f"process {self.number} did not answer (TimeoutError)")
        if isinstance(answer, int):
            answer = (answer, {"detail": f"said {answer}"})
        if request.method == "PUT" and answer[0] < 300:
            sent = json.loads(request.body)
            self.state_version = f"{sent['version']}.{sent['discovery']}"
        return Reply(answer[0], json.dumps(answer[1]).encode())


class FakeChild:
    """A keeper whose process never changes."""

    def __init__(self, number: int, answers=(), *, serves: bool = True) -> None:
        self.number = number
        self.client = FakeChildClient(number, answers) if serves else None
        self.settled = asyncio.Event()
        self.settled.set()
        self.killed = 0

    def kill(self) -> None:
        self.killed += 1

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(request.method, request.path) for request in self.client.asked]


@pytest.fixture
def children():
    """One keeper per list of answers; None in place of a list: its process does not serve."""

    def make(*answers) -> list[FakeChild]:
        return [FakeChild(number, each or (), serves=each is not None) for number, each in enumerate(answers)]

    return make
