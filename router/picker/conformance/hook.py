"""The command with which the operator lets the suite change the pool and look into the picker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

ALL = "all"
"""In place of an endpoint."""
NOT_OFFERED = 3
"""Exit status of a hook that does not know an action."""


class HookAction(StrEnum):
    NOT_READY = "not-ready"
    READY = "ready"
    TERMINATE = "terminate"
    ADD = "add"
    REMOVE = "remove"
    NARROW = "narrow"
    WIDEN = "widen"
    SATURATE = "saturate"
    RELEASE = "release"
    UNSYNC = "unsync"
    SYNC = "sync"
    DRAIN = "drain"
    LEDGER = "ledger"
    ERRORS = "errors"
    USAGE = "usage"


ACTIONS = {
    HookAction.NOT_READY: "The endpoint is not ready.",
    HookAction.READY: "The endpoint is ready again.",
    HookAction.TERMINATE: "The endpoint's pod is being deleted, and still there. `add` ends it.",
    HookAction.ADD: "The endpoint is in the pool, and ready.",
    HookAction.REMOVE: "The endpoint is not in the pool.",
    HookAction.NARROW: "The annotation `active-ports` of the endpoint's pod leaves its port out.",
    HookAction.WIDEN: "The annotation is gone.",
    HookAction.SATURATE: "All endpoints are as loaded as the picker allows.",
    HookAction.RELEASE: "They are not.",
    HookAction.UNSYNC: "The picker does not know the pool yet, or is a follower.",
    HookAction.SYNC: "It knows the pool, and leads.",
    HookAction.DRAIN: "The picker gets the signal to end.",
    HookAction.LEDGER: "Print how many requests the picker counts as running on the endpoint.",
    HookAction.ERRORS: "Print how many failed requests the picker has counted for the endpoint.",
    HookAction.USAGE: "Print how many output tokens the picker has counted for the endpoint.",
}
"""What each action does. Where no endpoint is meant, the argument is `all`; `ledger all` is the sum."""


class HookFailed(Exception):
    """The hook ended with an error, or did not end."""


class ActionNotOffered(Exception):
    """The hook ended with status 3."""


class Hook(Protocol):
    async def run(self, action: HookAction, endpoint: str) -> str:
        """Return what the hook printed.

        Raises:
            HookFailed: it ended with an error, or did not end.
            ActionNotOffered: it does not know the action.
        """
        ...


class CommandHook:
    """Run ``COMMAND ACTION ENDPOINT``."""

    def __init__(self, command: Sequence[str], limit_s: float = 60.0) -> None:
        self._command = tuple(command)
        self._limit_s = limit_s

    async def run(self, action: HookAction, endpoint: str) -> str:
        said = f"`{action} {endpoint}`"
        try:
            process = await asyncio.create_subprocess_exec(
                *(*self._command, action, endpoint),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise HookFailed(f"the hook did not start: {error.strerror}") from None
        out, err = await self._output(process, said)
        if process.returncode == NOT_OFFERED:
            raise ActionNotOffered(f"the hook does not offer {action}")
        if process.returncode:
            raise HookFailed(f"the hook failed at {said} with status {process.returncode}: {_last_line(err)}")
        return out.decode(errors="replace").strip()

    async def _output(self, process: asyncio.subprocess.Process, said: str) -> tuple[bytes, bytes]:
        try:
            async with asyncio.timeout(self._limit_s):
                return await process.communicate()
        except TimeoutError:
            raise HookFailed(f"the hook did not end {said} within {self._limit_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it printed no error"
