import asyncio

import pytest

from router.picker.conformance.hook import ActionNotOffered, CommandHook, HookAction, HookFailed


def hook(script, limit_s=30.0):
    return CommandHook(["sh", "-c", script, "hook"], limit_s)


async def test_it_gets_action_and_endpoint_and_returns_what_is_printed():
    assert await hook('echo " $1 at $2 "').run(HookAction.NOT_READY, "10.0.0.1:8000") == "not-ready at 10.0.0.1:8000"


async def test_status_3_is_an_action_that_is_not_offered():
    with pytest.raises(ActionNotOffered, match="does not offer ledger"):
        await hook("exit 3").run(HookAction.LEDGER, "all")


async def test_another_status_names_the_last_line_of_the_error():
    with pytest.raises(HookFailed, match="`add all` with status 4: no such pod"):
        await hook("echo usage >&2; echo no such pod >&2; exit 4").run(HookAction.ADD, "all")


async def test_a_hook_that_does_not_end_is_killed():
    with pytest.raises(HookFailed, match="did not end `add all` within"):
        async with asyncio.timeout(20):
            await hook("exec sleep 60", limit_s=0.1).run(HookAction.ADD, "all")


async def test_a_program_that_is_not_there():
    with pytest.raises(HookFailed, match="did not start: No such file"):
        await CommandHook(["/no/such/hook"]).run(HookAction.ADD, "all")
