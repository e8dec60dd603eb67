import asyncio
import logging
from functools import partial
from types import SimpleNamespace

import httpx
import pytest

from router.admin.app import build_admin
from router.admin.replies import Reply
from router.admin.table import OF_PROCESS
from router.process.children.all_processes import log_everywhere
from router.process.children.child_client import NoReplyError

PATH = "/admin/v1/log-level"


@pytest.fixture(autouse=True)
def restored():
    logger = logging.getLogger("warmroute")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
async def test_the_level_changes_at_once_and_is_shown(client, level):
    answer = await client.put(PATH, json={"level": level})
    assert (answer.status_code, answer.json()) == (200, {"level": level})
    assert (await client.get(PATH)).json() == {"level": level}
    log = logging.getLogger("warmroute.somewhere")
    enabled = [
        name for name in ("debug", "info", "warning", "error") if log.isEnabledFor(getattr(logging, name.upper()))
    ]
    assert enabled[0] == level


@pytest.mark.parametrize("level", ["critical", "DEBUG", "", 10])
async def test_another_level_is_refused_and_changes_nothing(client, problem, level):
    before = (await client.get(PATH)).json()
    assert problem(await client.put(PATH, json={"level": level}), 422)[0] == "invalid_value"
    assert (await client.get(PATH)).json() == before


class Child:
    """A process that answers each request with `status`, or does not answer."""

    def __init__(self, number, status):

        self.asked = []
        self.settled = asyncio.Event()
        self.settled.set()

        async def ask(request, limit_s=5.0):
            self.asked.append((request.method, request.path, request.body))
            if status is None:
                raise NoReplyError(f"process {number} did not answer")
            return Reply(status, b"{}")

        self.number = number
        self.client = SimpleNamespace(number=number, ask=ask)


@pytest.fixture
async def supervised(system):
    """Call the admin port of a supervisor with these children."""

    async def call(children, level):
        system.log_from = partial(log_everywhere, children)
        app = build_admin(system)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
            return await client.put(PATH, json={"level": level})

    return call


async def test_every_process_changes_its_level(supervised):
    children = [Child(0, 200), Child(1, 200)]
    assert (await supervised(children, "debug")).json() == {"level": "debug"}
    assert [child.asked for child in children] == [[("PUT", PATH, b'{"level":"debug"}')]] * 2
    assert logging.getLogger("warmroute").level == logging.DEBUG, "the supervisor's own, for processes that start later"


async def test_one_of_several_processes_takes_another_level(system):
    transport = httpx.ASGITransport(build_admin(system, operations=OF_PROCESS, guarded=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://process") as client:
        assert (await client.put(PATH, json={"level": "error"})).json() == {"level": "error"}


@pytest.mark.parametrize("status", [None, 405])
async def test_a_process_that_does_not_take_the_level_is_named(supervised, problem, status):
    code, detail = problem(await supervised([Child(0, 200), Child(1, status)], "debug"), 503)
    assert code == "no_process"
    assert "process 1 did not answer and keeps its level" in detail
